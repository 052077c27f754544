"""`parity run`."""

from __future__ import annotations

from pathlib import Path

import click

from parity.cli.common import (
    device_option,
    fresh,
    golden_option,
    isolation_options,
    json_option,
    limits,
    mode_option,
    open_golden,
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
    made = make_run(open_golden(golden), device_name, mode, precision, stages, out, limits=limits(**isolation))
    from parity.reports.dumps import print_dump

    write_json(json_file, print_dump(made))


def make_run(golden, device_name, mode, precision="bfloat16", stages=(), out=None, free=True, limits=None):
    """Drive a device over an opened golden; the opened run. `free` lets it generate by itself as well."""
    from parity.cli.wiring import device
    from parity.drive import RunRequest, run_device
    from parity.golden.store import Dump

    built = device(device_name, golden, precision, limits)
    with progress(f"{device_name} {mode}") as bar:
        made = run_device(
            RunRequest(
                device=built,
                golden=golden,
                mode=mode,
                stages=stages,
                out=out or fresh("runs", f"{device_name.replace(':', '-')}-{mode}"),
                progress=bar,
                device_name=device_name,
                free=free,
            )
        )
    return Dump(made)
