"""`parity calibrate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from parity.cli.opening import golden_option, open_judging
from parity.cli.options import json_option, precision_option, write_json
from parity.cli.progress_bar import progress
from parity.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parity.calibrate import Calibration
    from parity.gates.clean import GateCalibration
    from parity.golden.choice import Wanted
    from parity.golden.views import TrustedGolden


@click.command()
@golden_option
@click.option(
    "--device",
    "names",
    multiple=True,
    metavar="NAME",
    help="A clean device, as for `parity diff`; may be repeated. "
    "Default: numpy and every variant of parity.device.variants.",
)
@click.option(
    "--show", metavar="VIEW|GLOB+...", help="Only a part of each device is shown, as in numpy,show=layer-kernels."
)
@precision_option
@click.option(
    "--gate",
    "gates",
    multiple=True,
    metavar="GATE",
    help="This gate over the devices, three prompts at a time, in place of comparisons; may be repeated.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Comparisons to make, at most prompts x devices x 2 modes; runs of gates, at most prompts x devices x gates.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Verify rounds of each comparison; gates have all.",
)
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Bounds; the shipped policy of the precision by default.",
)
@click.option("--strict", is_flag=True, help="A warning is a false alarm.")
@json_option
def calibrate(
    golden: Wanted,
    names: tuple[str, ...],
    show: str | None,
    precision: str,
    gates: tuple[str, ...],
    runs: int,
    rounds: int,
    policy: Path | None,
    strict: bool,
    json_file: Path | None,
) -> None:
    """Count the policy's false alarms: clean devices that differ in rounding only, one prompt at a time."""
    from parity.builders import clean_devices
    from parity.plain import echo
    from parity.reports.calibration import print_calibration, print_clean_gates

    opened = open_judging(golden)
    if not names:
        names, left_out = clean_devices(opened)
        for why in left_out:
            echo(f"left out: {why}", err=True)
    if gates:
        if show or policy:
            raise UsageError(f"--{'show' if show else 'policy'} is of comparisons; --gate runs gates in their place")
        with progress("clean") as bar:
            judged = _gates(opened, gates, precision, names=names, runs=runs, progress=bar)
        print_clean_gates(judged, strict)
        _end(judged, strict, json_file)
    with progress("clean") as bar:
        compared = _comparisons(opened, show, policy, precision, names=names, runs=runs, rounds=rounds, progress=bar)
    print_calibration(compared, strict)
    _end(compared, strict, json_file)


def _end(found: Calibration | GateCalibration, strict: bool, json_file: Path | None) -> NoReturn:
    write_json(json_file, found.to_dict())
    sys.exit(found.exit_code(strict))


def _comparisons(
    golden: TrustedGolden, show: str | None, policy: Path | None, precision: str, names: Sequence[str], **rest: Any
) -> Calibration:
    from parity.builders import device
    from parity.calibrate import CalibrationRequest
    from parity.calibrate import calibrate as count
    from parity.oracles import ReferenceRerun
    from parity.policy import read_policy

    return count(
        CalibrationRequest(
            golden=golden,
            device=lambda name: device(name, golden, precision),
            names=[f"{name},show={show}" if show else name for name in names],
            policy=read_policy(policy, precision),
            rerun=ReferenceRerun(),
            **rest,
        )
    )


def _gates(golden: TrustedGolden, gates: Sequence[str], precision: str, **rest: Any) -> GateCalibration:
    from parity.builders import gate_context
    from parity.gates import GATES
    from parity.gates.clean import CleanGates, clean_gates

    for gate in gates:
        if gate not in GATES:
            raise UsageError(f"--gate {gate}: no such gate; there is {', '.join(GATES)}")
    return clean_gates(
        CleanGates(golden, lambda part, name, folder: gate_context(part, name, precision, folder), gates=gates, **rest)
    )
