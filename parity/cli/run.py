"""`parity run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli.opening import foretell, golden_option, open_judging
from parity.cli.options import (
    KEPT,
    device_option,
    isolation_options,
    json_option,
    layers_option,
    limits,
    mode_option,
    precision_option,
    smaller_option,
    stage_option,
    write_json,
)
from parity.cli.progress_bar import progress

if TYPE_CHECKING:
    from parity.golden.choice import Wanted
    from parity.golden.fields import Mode


@click.command()
@device_option
@golden_option
@mode_option
@precision_option
@layers_option
@stage_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder to write; a new one under .parity/runs by default.",
)
@smaller_option
@isolation_options(default=False)
@json_option
def run(
    device_name: str,
    golden: Wanted,
    mode: Mode,
    precision: str,
    layers: str,
    stages: tuple[str, ...],
    out: Path | None,
    json_file: Path | None,
    **rest: Any,
) -> None:
    """Run a device over a golden's prompts and write down every stage."""
    from parity.api import run_device
    from parity.reports.dumps import print_dump

    kept = {name: rest.pop(name) for name in KEPT}
    kept = {name: value for name, value in kept.items() if value is not None}
    opened, held = open_judging(golden, sampled=True, smaller=True), limits(**rest)
    foretell("run", opened, device_name)
    with progress(f"{device_name} {mode}") as bar:
        made = run_device(
            opened, device_name, mode, precision, stages, out, layers=layers, limits=held, progress=bar, **kept
        )
    write_json(json_file, print_dump(made))
