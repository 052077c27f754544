"""`parity run`."""

from __future__ import annotations

from pathlib import Path

import click

from parity.cli.common import (
    device_option,
    golden_option,
    isolation_options,
    json_option,
    limits,
    mode_option,
    open_judging,
    precision_option,
    progress,
    stage_option,
    write_json,
)


@click.command()
@device_option
@golden_option
@mode_option
@precision_option
@stage_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder to write; a new one under .parity/runs by default.",
)
@isolation_options(default=False)
@json_option
def run(device_name, golden, mode, precision, stages, out, json_file, **isolation) -> None:
    """Run a device over a golden's prompts and write down every stage."""
    from parity.api import run_device
    from parity.reports.dumps import print_dump

    opened, held = open_judging(golden), limits(**isolation)
    with progress(f"{device_name} {mode}") as bar:
        made = run_device(opened, device_name, mode, precision, stages, out, limits=held, progress=bar)
    write_json(json_file, print_dump(made))
