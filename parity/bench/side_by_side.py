"""What a bench says beside the model: one loop over another of the same engine, and how far the model is off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parity.bench.figures import over
from parity.bench.records import BenchCell, LoopRatio, Predicted

VERBS = "verbs"
"""The loop that is driven from here, and that others are compared with."""


def loop_ratios(cells: Sequence[BenchCell]) -> Iterator[LoopRatio]:
    """Every cell of a loop of the device's own over the cell of the same engine, options, block and K that is driven
    by verbs; in plain decoding over the one that decodes in one call."""
    driven = {_place(cell): cell for cell in cells if cell.axes.loop in (VERBS, "synchronous") and cell.turns}
    for cell in cells:
        other = driven.get(_place(cell))
        if other is None or other.axes.loop == cell.axes.loop or not cell.turns:
            continue
        if (ratio := over(cell.turns, other.turns)) is not None:
            yield LoopRatio(cell=cell.axes.name, over=other.axes.name, ratio=ratio)


def farthest(rows: Sequence[Predicted]) -> tuple[Predicted, float] | None:
    """The prediction that is farthest from what was measured, and measured over predicted, less one."""
    off = [(row, row.measured.estimate / row.predicted - 1) for row in rows if row.predicted > 0]
    return max(off, key=lambda pair: abs(pair[1]), default=None)


def _place(cell: BenchCell) -> tuple[str, str, str, int]:
    axes = cell.axes
    options = (one for one in axes.device.split(",") if not one.startswith("loop="))
    return axes.block, ",".join(options), axes.decoding, axes.k
