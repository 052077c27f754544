"""What `parity ops` prints: what is wrong as soon as it is known, then each kind of operation in a line."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from parity.compare.report import PASS, conclude, join
from parity.ops.harness import OperationReport, OperationResult
from parity.reports.console import STYLE, console
from parity.seam import Operation


def print_operations(operations: Mapping[Operation, Mapping[str, int]]) -> None:
    """Every operation, what it makes, and its calls in each phase."""
    out = console()
    for operation, calls in operations.items():
        counted = ", ".join(f"{count} {phase}" for phase, count in calls.items())
        made = ", ".join(map(str, operation.results))
        out.print(f"{operation} -> {made}  {counted}", soft_wrap=True, highlight=False, markup=False)
    total = sum(sum(calls.values()) for calls in operations.values())
    out.print(f"{len(operations)} operations, {total} calls; matrix multiplications: parity shapes")


def print_result(result: OperationResult) -> None:
    """One line where an operation does not pass, or ran smaller than it is."""
    out = console()
    if result.verdict != PASS:
        text = Text.assemble((f"{result.verdict:<13}", STYLE[result.verdict]), f"{result.operation}: {result.why}")
        out.print(text, soft_wrap=True, highlight=False)
    if result.cut:
        out.print(f"{'cut':<13}{result.operation} ran as {result.cut}", soft_wrap=True, highlight=False, markup=False)


def print_operation_report(found: OperationReport) -> None:
    """The table by name and dtype, and the verdict with the operation that failed first."""
    out, table = console(), Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for heading in ("verdict", "operation", "makes", "shapes", "elements", "wrong", "max ULP", "x bound"):
        table.add_column(heading, justify="left" if heading in ("verdict", "operation", "makes") else "right")
    kinds: dict[tuple[str, str], list[OperationResult]] = {}
    for result in found.results:
        kinds.setdefault((result.operation.name, result.operation.results[0].dtype), []).append(result)
    for (name, dtype), some in kinds.items():
        verdict = join(result.verdict for result in some)
        judged, wrong = (sum(getattr(result, what) for result in some) for what in ("judged", "wrong"))
        counts = str(len(some)), str(judged), str(wrong)
        table.add_row(Text(verdict, STYLE[verdict]), name, dtype, *counts, *_figures(some))
    out.print(table)
    bad, last = [result for result in found.results if result.verdict == found.verdict != PASS], ""
    if bad:
        last = f"; {len(bad)} of {len(found.results)} operations, first {bad[0].operation}: {bad[0].why}"
        last += f"; reproduce: the same command with --op '{bad[0].operation}'"
    verdict = conclude([found.verdict])
    out.print(Text.assemble((f"ops verdict: {verdict}", STYLE[verdict]), last), soft_wrap=True, highlight=False)


def _figures(some: list[OperationResult]) -> tuple[str, str]:
    """Largest error in ULP and in multiples of its bound; `exact` where nothing may differ."""
    if all(result.exact for result in some):
        return "exact", ""
    rounded = [result for result in some if result.judged]
    return (
        f"{max((result.ulp for result in rounded), default=0.0):.3g}",
        f"{max((result.of_bound for result in rounded), default=0.0):.2g}",
    )
