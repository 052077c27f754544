"""Which plain decoding speculation has to beat: the faster one, where a device decodes plainly in two ways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from parity.bench.records import BenchAxes, BenchCell, BenchTurn


class Measured(Protocol):
    """A cell whose runs were timed, finished or not."""

    @property
    def axes(self) -> BenchAxes:
        """Where it sits."""

    @property
    def turns(self) -> Sequence[BenchTurn]:
        """Its timed runs."""

    @property
    def error(self) -> str:
        """Why it has none."""


M = TypeVar("M", bound=Measured)


def plain_cells(cell: Measured, cells: Iterable[M]) -> list[M]:
    """The plain decoding of a cell's device in its block, in each of its ways."""
    place = cell.axes.block, cell.axes.device
    return [one for one in cells if one.axes.plain and (one.axes.block, one.axes.device) == place]


def fastest(cell: Measured, cells: Iterable[M]) -> M | None:
    """The plain decoding of most tokens a second over all of its runs; None where none was measured."""
    measured = [one for one in plain_cells(cell, cells) if one.turns and not one.error]
    return max(measured, key=_rate, default=None)


def baseline_of(cell: BenchCell, cells: Iterable[BenchCell]) -> BenchCell | None:
    """The plain decoding that a cell's ratio is over: the one that it names, or the faster one."""
    some = list(cells)
    named = (one for one in some if one.axes.name == cell.baseline and one.turns)
    return next(named, None) or fastest(cell, some)


def choices(cells: Sequence[BenchCell]) -> Iterator[str]:
    """Of each device that decodes plainly in two ways: which one its ratios are over, in words."""
    named = dict.fromkeys((cell.axes.device, cell.baseline) for cell in cells if cell.baseline)
    for device, baseline in named:
        if len([one for one in cells if one.axes.plain and one.axes.device == device]) > 1:
            over = next(one.axes.decoding for one in cells if one.axes.name == baseline)
            yield f"{device}: over plain is over {over}, the faster one of two"


DEAR = 1.25
"""A step of plain decoding over a round without its draft, where plain decoding is one that nobody would use: a round
verifies more rows than a step. It is 0.58 to 1.06 in 24 pairs of cells of the numpy and xla engines (K = 1, 2, 4; chat
and raw; 1.06 on xla by verbs at K = 1), since the loop around the verbs costs something, too."""


def needlessly_dear(best: BenchCell, plain: BenchCell) -> str:
    """Why a ratio to this plain decoding says nothing: the device's own rounds give a token in less time than a step.

    '' where they do not, or a loop in one piece tells of no verbs.
    """
    drafts = sum(turn.stages.get("draft", 0.0) for turn in best.turns)
    rounds = sum(turn.calls.get("verify", 0) for turn in best.turns)
    steps = sum(turn.decoded for turn in plain.turns) / plain.axes.lanes
    if not rounds or not steps:
        return ""
    one = sum(turn.decode for turn in best.turns) - drafts
    step = sum(turn.decode for turn in plain.turns) / steps
    if step * rounds <= DEAR * one:
        return ""
    return (
        f"a step of plain decoding takes {step * 1000:.3g} ms, a round without its draft {one / rounds * 1000:.3g} ms, "
        "and that verifies more rows: plain decoding is slower than the device is"
    )


def _rate(cell: Measured) -> float:
    seconds = sum(turn.decode for turn in cell.turns)
    return sum(turn.decoded for turn in cell.turns) / seconds if seconds > 0 else 0.0
