"""`parity ops`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli.described import described_run, inventory
from parity.cli.options import json_option, write_json
from parity.cli.progress_bar import progress

if TYPE_CHECKING:
    from parity.seam import Operation


@click.command()
@described_run
@click.option("--list", "listed", is_flag=True, help="List the operations and their calls; run none.")
@click.option(
    "--op",
    "named",
    multiple=True,
    metavar="GLOB",
    help="Only these operations: a glob over the name (`where`), or the whole line of one; may be repeated.",
)
@click.option(
    "--device",
    "device_name",
    default="numpy",
    show_default=True,
    help="numpy, xla, nkipy, neuron, or package.module:factory with a function `operate` beside it.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the operands.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=1 << 27,
    show_default=True,
    metavar="ELEMENTS",
    help="Largest array of an operation that cannot be cut; a larger one is inconclusive.",
)
@json_option
def ops(
    phases: tuple[str, ...],
    listed: bool,
    named: tuple[str, ...],
    device_name: str,
    seed: int,
    limit: int,
    json_file: Path | None,
    **run: Any,
) -> None:
    """Run every distinct operation of a run's programs alone, compared with float64; no weights, no model.

    Operations that move data must do so bit for bit, those that compute are bounded in ULP. Matrix multiplications are
    those of `parity shapes --run`. A device lists its own program's by a function `operations` beside its factory.

    Exit code 1: an operation is wrong; 3: one could not be tried, or there was none.
    """
    from parity.factories import own_operations
    from parity.reports.ops import print_operations

    own = own_operations(device_name) if ":" in device_name else []
    traced = {operation: {"its own": 1} for operation in own} if own else inventory(**run).operations(phases)
    operations = _chosen(named, traced)
    if not listed:
        sys.exit(_try(operations, device_name, seed, limit, json_file))
    calls = {str(operation): dict(counted) for operation, counted in operations.items()}
    print_operations(operations)
    write_json(json_file, {"operations": calls})


def _chosen(
    named: Sequence[str], operations: Mapping[Operation, Mapping[str, int]]
) -> dict[Operation, Mapping[str, int]]:
    """Those that are named, or all.

    Raises:
        UsageError: a name is none of them.
    """
    from fnmatch import fnmatchcase

    from parity.errors import UsageError

    def fits(glob: str, operation: Operation) -> bool:
        return str(operation) == glob or fnmatchcase(operation.name, glob)

    for glob in named:
        if not any(fits(glob, operation) for operation in operations):
            raise UsageError(f"--op {glob}: no operation of this run (`parity ops --list` has them)")
    return {
        operation: calls
        for operation, calls in operations.items()
        if not named or any(fits(glob, operation) for glob in named)
    }


def _try(
    operations: Mapping[Operation, Mapping[str, int]], device_name: str, seed: int, limit: int, json_file: Path | None
) -> int:
    """Run and judge them; the exit code."""
    from parity.compare.report import exit_code
    from parity.factories import operator
    from parity.ops.harness import OperationReport, try_operation
    from parity.reports.ops import print_operation_report, print_result

    operate, results = operator(device_name), []
    with progress("operations") as bar:
        for number, operation in enumerate(operations):
            bar(number, len(operations), str(operation))
            results.append(try_operation(operation, operate, seed, limit))
            print_result(results[-1])
    found = OperationReport(device_name, seed, tuple(results))
    print_operation_report(found)
    write_json(json_file, found.to_dict())
    return exit_code(found.verdict)
