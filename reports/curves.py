"""Acceptance curves on a terminal: a line for each draft length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from parity.curves import CurveReport, Point
from parity.reports.console import STYLE, console


def print_points(points: Iterable[Point]) -> None:
    """Mean, limits and rates by place."""
    for point in points:
        console().print(Text(_line(point)), soft_wrap=True)


def print_compared(report: CurveReport) -> None:
    """A line for each draft length with its verdict, then the last word."""
    for one in report.compared:
        text = Text(f"{one.verdict:<13}", style=STYLE[one.verdict])
        text.append(f"{_line(one.point)}; curve {one.curve:.2f}, {one.relative:+.1%} ", style="default")
        text.append(f"[{one.low:+.1%}, {one.high:+.1%}]" + (f"; {one.why}" if one.why else ""), style="default")
        console().print(text, soft_wrap=True)
    last = f"curve verdict: {report.verdict}; {report.model}, {report.mode}"
    console().print(Text(last, style=STYLE[report.verdict]), soft_wrap=True)


def _line(point: Point) -> str:
    line = f"K {point.k}: {point.mean:.3f} [{point.low:.3f}, {point.high:.3f}], {point.rounds} rounds, "
    return line + f"{point.prompts} prompts; accepted by place {_rates(point.rates)}"


def _rates(rates: Sequence[float]) -> str:
    return " ".join(f"{rate:.3f}" for rate in rates)
