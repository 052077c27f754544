"""`parity diagnose`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli.opening import agree, foretell, golden_option, open_both, partial_option
from parity.cli.options import (
    Amount,
    device_option,
    isolation_options,
    json_option,
    limits,
    precision_option,
    write_json,
)
from parity.cli.progress_bar import progress

if TYPE_CHECKING:
    from parity.golden.choice import Wanted


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False, metavar="[RUN]")
@golden_option
@device_option
@precision_option
@click.option("--policy", metavar="FILE|NAME", help="Bounds; the default policy of the precision where not given.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of the references.")
@partial_option
@click.option(
    "--limit",
    type=Amount(or_zero=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for the search of causes, beside the device's own runs; 0: no limit.",
)
@isolation_options(default=False)
@json_option
def diagnose(
    run: Path | None,
    golden: Wanted,
    device_name: str,
    precision: str,
    policy: str | None,
    threads: int,
    partial: bool,
    limit: float,
    json_file: Path | None,
    **isolation: Any,
) -> None:
    """Name the defect behind a red RUN, or behind --device: run the references under one hypothesis at a time.

    A hypothesis is named if the references under it give the device's tensors, down to the noise floor. Exit code 0:
    nothing is wrong; 1: something is, named or not; 3: what would show it is missing, or --limit cut the search short.
    """
    from parity.api import diagnose_device
    from parity.reports.diagnosis import print_clean, print_diagnosis, print_gate_findings

    opened, made = open_both(golden, run, partial)
    if made is not None:
        agree(made, device_name=device_name, precision=precision)
    held = limits(**isolation)
    foretell("diagnose", opened, device_name)
    with progress(f"diagnose {device_name}") as bar:
        told = diagnose_device(
            opened,
            device_name,
            precision,
            run=made,
            policy=policy,
            threads=threads,
            limits=held,
            limit=limit or None,
            progress=bar,
        )
    if not told:
        print_clean(opened, made)
        write_json(json_file, [] if isinstance(told, list) else {})
        return
    if isinstance(told, list):
        print_gate_findings(told, opened)
        write_json(json_file, [asdict(reading) for reading in told])
        sys.exit(1)
    print_diagnosis(told, opened)
    write_json(json_file, asdict(told))
    sys.exit(3 if told.untried or told.verdict in ("inconclusive", "disputed") else 1)
