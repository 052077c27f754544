"""`parity shapes`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli.described import described_run, inventory
from parity.cli.options import json_option, write_json
from parity.cli.progress_bar import progress

if TYPE_CHECKING:
    from parity.seam import Gemm


@click.command()
@described_run
@click.option(
    "--run", "measured", is_flag=True, help="Run each multiplication on --device against float64, and judge it."
)
@click.option(
    "--gemm",
    "named",
    multiple=True,
    metavar="[BxB]MxKxN",
    help="Run only this shape, one of the pair's or any other; may be repeated.",
)
@click.option(
    "--device",
    "device_name",
    default="numpy",
    show_default=True,
    help="numpy, or package.module:factory with a function `multiply` beside it.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the operands.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=1 << 27,
    show_default=True,
    metavar="ELEMENTS",
    help="Largest array of one multiplication; a larger shape runs in pieces.",
)
@json_option
def shapes(
    phases: tuple[str, ...],
    measured: bool,
    named: tuple[str, ...],
    device_name: str,
    seed: int,
    limit: int,
    json_file: Path | None,
    **run: Any,
) -> None:
    """List every matrix multiplication and program of one run, from the configs alone; --run tries them.

    With --run, exit code 1: a shape is off by more than its rounding explains; 3: there was no shape to try.
    """
    from parity.reports.shapes import print_inventory

    found = inventory(**run)
    if named or measured:
        gemms = _chosen(named, found.gemms(phases), run["precision"])
        sys.exit(_try(gemms, device_name, seed, limit, json_file))
    listed = found.to_dict(phases)
    print_inventory(listed)
    write_json(json_file, listed)


def _chosen(named: Sequence[str], listed: Iterable[Gemm], precision: str) -> list[Gemm]:
    """The listed shapes, or those named: from the list where they are on it."""
    known = list(listed)
    if not named:
        return known
    return [one for text in named for one in [one for one in known if str(one) == text] or [_gemm(text, precision)]]


def _gemm(text: str, precision: str) -> Gemm:
    """A shape in the user's words, `5x2880x201088` or `32x5x2880x2880`."""
    from parity.errors import UsageError
    from parity.seam import Gemm

    sizes = text.split("x")
    if len(sizes) not in (3, 4) or not all(size.isdecimal() and int(size) for size in sizes):
        raise UsageError(f"--gemm {text}: a shape is MxKxN or BATCHxMxKxN, as in 5x2880x201088")
    *batch, m, k, n = map(int, sizes)
    return Gemm(m, k, n, batch[0] if batch else 1, dtype=precision, values=precision)


def _try(gemms: Sequence[Gemm], device_name: str, seed: int, limit: int, json_file: Path | None) -> int:
    """Run and judge the shapes; the exit code."""
    from parity.compare.report import FAIL, INCONCLUSIVE
    from parity.factories import multiplier
    from parity.gemm.harness import GemmReport, try_gemm
    from parity.reports.shapes import print_finding, print_findings

    multiply, results = multiplier(device_name), []
    with progress("shapes") as bar:
        for number, gemm in enumerate(gemms):
            bar(number, len(gemms), str(gemm))
            results.append(try_gemm(gemm, multiply, seed, limit))
            print_finding(results[-1], heading=not number)
    found = GemmReport(device_name, seed, tuple(results))
    print_findings(found)
    write_json(json_file, found.to_dict())
    return {FAIL: 1, INCONCLUSIVE: 3}.get(found.verdict, 0)
