"""`parity diagnose`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from parity.cli.common import (
    agree,
    device_option,
    golden_option,
    isolation_options,
    json_option,
    limits,
    open_judging,
    precision_option,
    progress,
    write_json,
)


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False, metavar="[RUN]")
@golden_option
@device_option
@precision_option
@click.option("--policy", metavar="FILE|NAME", help="Bounds; the default policy of the precision where not given.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of the references.")
@isolation_options(default=False)
@json_option
def diagnose(run, golden, device_name, precision, policy, threads, json_file, **isolation) -> None:
    """Name the defect behind a red RUN, or behind --device: run the references under one hypothesis at a time.

    A hypothesis is named if the references under it give the device's tensors, down to the noise floor. Exit code 0:
    nothing is wrong; 1: something is, named or not; 3: what would show it is missing.
    """
    from parity.api import diagnose_device
    from parity.golden.store import Dump
    from parity.reports.diagnosis import print_clean, print_diagnosis, print_gate_findings

    golden = open_judging(golden)
    run = Dump(run) if run else None
    if run is not None:
        agree(run, device_name=device_name, precision=precision)
    asked = dict(run=run, policy=policy, threads=threads, limits=limits(**isolation))
    with progress(f"diagnose {device_name}") as bar:
        found = diagnose_device(golden, device_name, precision, **asked, progress=bar)
    write_json(json_file, [asdict(one) for one in found] if isinstance(found, list) else asdict(found) if found else {})
    if not found:
        print_clean(golden, run)
        return
    (print_gate_findings if isinstance(found, list) else print_diagnosis)(found, golden)
    sys.exit(3 if getattr(found, "verdict", "") in ("inconclusive", "disputed") else 1)
