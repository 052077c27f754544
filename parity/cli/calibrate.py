"""`parity calibrate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from parity.cli.common import golden_option, json_option, open_judging, precision_option, progress, write_json

if TYPE_CHECKING:
    from parity.golden.choice import Wanted


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
    "--runs",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Comparisons to make, at most prompts x devices x 2 modes.",
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
