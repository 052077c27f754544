"""`parity calibrate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from parity.cli.common import golden_option, json_option, open_judging, precision_option, progress, write_json
from parity.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True, help="Verify rounds of each case.")
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
    from parity.calibrate import CalibrationRequest
    from parity.calibrate import calibrate as count
    from parity.policy import read_policy
    from parity.producers import ReferenceRerun, clean_devices, device
    from parity.reports.calibration import print_calibration

    opened = open_judging(golden)
    if gates:
        if show or policy:
            raise UsageError(f"--{'show' if show else 'policy'} is of comparisons; --gate runs gates in their place")
        _gates(opened, names or clean_devices(), gates, precision, runs, rounds, strict, json_file)
    with progress("clean") as bar:
        found = count(
            CalibrationRequest(
                golden=opened,
                device=lambda name: device(name, opened, precision),
                names=[f"{name},show={show}" if show else name for name in names or clean_devices()],
                policy=read_policy(policy, precision),
                runs=runs,
                rounds=rounds,
                progress=bar,
                rerun=ReferenceRerun() if show else None,
            )
        )
    write_json(json_file, found.to_dict())
    print_calibration(found, strict)
    sys.exit(found.exit_code(strict))


def _gates(
    golden: TrustedGolden,
    names: Sequence[str],
    gates: Sequence[str],
    precision: str,
    runs: int,
    rounds: int,
    strict: bool,
    json_file: Path | None,
) -> None:
    """Run gates over clean devices and end."""
    from parity.gates import GATES
    from parity.gates.clean import CleanGates, clean_gates
    from parity.partial import scratch
    from parity.producers import gate_context
    from parity.reports.calibration import print_clean_gates

    for gate in gates:
        if gate not in GATES:
            raise UsageError(f"--gate {gate}: no such gate; there is {', '.join(GATES)}")
    with progress("clean") as bar, scratch("calibrate") as folder:
        found = clean_gates(
            CleanGates(
                golden,
                lambda part, name: gate_context(part, name, precision, folder / str(len(list(folder.iterdir())))),
                names,
                gates,
                runs,
                rounds,
                bar,
            )
        )
    write_json(json_file, found.to_dict())
    print_clean_gates(found, strict)
    sys.exit(found.exit_code(strict))
