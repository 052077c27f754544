"""Predicted, measured, and what explains the difference, for every cell that speculates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from parity.bench.baseline import baseline_of
from parity.bench.model import expected_tokens, speed_up, speed_up_constant
from parity.bench.records import BenchCell, Predicted
from parity.bench.round_costs import modelled_round, waited_for
from parity.errors import Inconclusive, UsageError

Roofline = Callable[[str, int, Sequence[float]], float | None]
"""A device's name, K and acceptance to the speed-up that the machine's peaks allow; None where it is not said."""


def predictions(cells: Sequence[BenchCell], roofline: Roofline | None = None) -> Iterator[Predicted]:
    """The model of each cell with K fixed drafts, its device's plain decoding being there.

    Acceptance by position is that of the largest K of the device in the block: drafts behind do not change those
    before. What a round costs, `parity.bench.round_costs` says.
    """
    for cell in cells:
        if cell.axes.decoding == "speculative" and (found := _predicted(cell, _others(cell, cells), roofline)):
            yield found


def _others(cell: BenchCell, cells: Sequence[BenchCell]) -> list[BenchCell]:
    return [other for other in cells if other.axes.block == cell.axes.block and other.overall]


def _predicted(cell: BenchCell, block: Sequence[BenchCell], roofline: Roofline | None) -> Predicted | None:
    mine = [other for other in block if other.axes.device == cell.axes.device]
    plain = baseline_of(cell, mine)
    fixed = [other for other in mine if other.axes.decoding == "speculative" and _speculation(other)]
    if plain is None or not fixed or cell.overall is None or cell.overall.over_plain is None:
        return None
    modelled = modelled_round(cell, plain, block)
    if modelled is None:
        return None
    source = max(fixed, key=lambda other: other.axes.k)
    rates, cost = _conditional(source)[: cell.axes.k], modelled.cost
    return Predicted(
        cell=cell.axes.name,
        acceptance_of=source.axes.name,
        model=modelled.model,
        k=cell.axes.k,
        predicted=speed_up(rates, cost),
        constant=speed_up_constant(rates[0] if rates else 0.0, cell.axes.k, cost.per_draft(cell.axes.k)),
        measured=cell.overall.over_plain,
        tokens=_length(cell) / expected_tokens(rates),
        costs=modelled.costs,
        rest=modelled.rest,
        roofline=_allowed(cell, rates, roofline),
    )


def _allowed(cell: BenchCell, rates: Sequence[float], roofline: Roofline | None) -> float | None:
    try:
        return roofline(cell.axes.device, cell.axes.k, rates) if roofline else None
    except (Inconclusive, UsageError):
        return None


def _length(cell: BenchCell) -> float:
    """Tokens of a round; of a batch, of a lane in a round of all, whose lanes may have ended."""
    return sum(turn.decoded for turn in cell.turns) / waited_for(cell) / cell.axes.lanes


def _speculation(cell: BenchCell) -> bool:
    return bool(cell.overall and cell.overall.speculation)


def _conditional(cell: BenchCell) -> list[float]:
    """Acceptance by position; nothing where no round came that far."""
    assert cell.overall is not None and cell.overall.speculation is not None
    return [rate or 0.0 for rate in cell.overall.speculation.conditional]
