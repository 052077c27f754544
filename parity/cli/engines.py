"""`parity engines`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli.opening import foretell, golden_option, open_judging
from parity.cli.options import isolation_options, json_option, limits, precision_option, write_json
from parity.cli.progress_bar import progress
from parity.plain import echo

if TYPE_CHECKING:
    from parity.golden.choice import Wanted
    from parity.golden.fields import Mode
    from parity.golden.store import Dump


@click.command()
@golden_option
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME",
    help="Only these devices; every engine that runs here by default.",
)
@precision_option
@click.option("--policy", metavar="FILE|NAME", help="Bounds; the policy of the precision by default.")
@click.option("--markdown", is_flag=True, help="The page docs/engines.md.")
@isolation_options(default=False)
@json_option
def engines(
    golden: Wanted,
    devices: tuple[str, ...],
    precision: str,
    policy: str | None,
    markdown: bool,
    json_file: Path | None,
    **isolation: Any,
) -> None:
    """Hold every engine against the golden and against every other one, in both modes."""
    from parity.api import run_device
    from parity.builders import present_engines
    from parity.engines import matrix
    from parity.errors import UsageError
    from parity.oracles import ReferenceRerun
    from parity.partial import scratch
    from parity.reports.engines import page, print_matrix

    if len(set(devices)) != len(devices):
        raise UsageError("parity engines: name every --device once")
    held = limits(**isolation)
    absent: dict[str, str] = {}
    if not devices:
        devices, absent = present_engines()
    opened = open_judging(golden)
    foretell("engines", opened, "numpy")
    with scratch("engines") as folder:

        def run(name: str, mode: Mode) -> Dump:
            out = folder / f"{devices.index(name)}-{mode}"
            with progress(f"{name} {mode}") as bar:
                return run_device(opened, name, mode, precision, out=out, free=False, limits=held, progress=bar)

        found = matrix(opened, devices, precision, run, ReferenceRerun(), policy, absent)
    if markdown:
        echo(page(found), nl=False)
    else:
        print_matrix(found)
    write_json(json_file, found.to_dict)
    sys.exit(found.exit_code)
