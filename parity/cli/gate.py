"""`parity gate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli.opening import agree, foretell, golden_option, open_both, partial_option
from parity.cli.options import (
    bound_option,
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
@golden_option
@device_option
@precision_option
@click.option("--only", multiple=True, metavar="GATE", help="Only this gate; once for each gate.")
@click.option(
    "--quick",
    is_flag=True,
    help="The most telling gates over one prompt's first rounds: exit 1 if one fails, else 3; nothing passes by it.",
)
@click.option(
    "--run",
    "run",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Judge this run instead of making one of its mode.",
)
@partial_option
@click.option(
    "--histories",
    type=click.IntRange(min=1),
    default=500,
    show_default=True,
    help="Accept/reject histories of the rollback gate.",
)
@bound_option
@click.option("--seed", type=int, default=0, show_default=True, help="Of everything random.")
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep the runs the gates made in this new folder."
)
@isolation_options(default=True)
@json_option
def gate(
    golden: Wanted,
    device_name: str,
    precision: str,
    only: tuple[str, ...],
    quick: bool,
    run: Path | None,
    partial: bool,
    histories: int,
    bound: float,
    seed: int,
    keep: Path | None,
    json_file: Path | None,
    **isolation: Any,
) -> None:
    """Run every gate over a device, joined by AND: stages, decisions, losslessness, acceptance, caches.

    Which gates there are: `parity gate --only help`. --quick answers in under a minute on the tiny pair.
    """
    from parity.api import gate_device
    from parity.gates import GATES
    from parity.gates.gate import SAMPLED
    from parity.reports.gates import print_gates, print_names, print_result

    if only == ("help",):
        print_names(GATES)
        return
    opened, made = open_both(golden, run, partial, sampled=bool(only) and {*only} <= {*SAMPLED})
    if made:
        agree(made, precision=precision)
        precision = made.manifest.case.precision
    held = limits(**isolation)
    if not (only or quick):
        foretell("gate", opened, device_name)
    with progress("gate") as bar:
        gates = gate_device(
            opened,
            device_name,
            precision,
            only or None,
            quick=quick,
            run=made,
            histories=histories,
            seed=seed,
            bound=bound,
            keep=keep,
            limits=held,
            done=print_result,
            progress=bar,
        )
    print_gates(gates)
    write_json(json_file, gates.to_dict())
    sys.exit(gates.exit_code)
