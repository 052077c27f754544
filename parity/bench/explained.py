"""Predicted, measured, and what explains the difference, for every cell that speculates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from parity.bench.baseline import baseline_of
from parity.bench.model import RoundCost, expected_tokens, speed_up, speed_up_constant
from parity.bench.records import BenchCell, Predicted
from parity.errors import Inconclusive, UsageError

Roofline = Callable[[str, int, Sequence[float]], float | None]
"""A device's name, K and acceptance to the speed-up that the machine's peaks allow; None where it is not said."""
VERBS = ("draft", "verify", "commit")


def predictions(cells: Sequence[BenchCell], roofline: Roofline | None = None) -> Iterator[Predicted]:
    """The model of each cell with K fixed drafts, its device's plain decoding being there.

    Acceptance by position is that of the largest K of the device in the block: drafts behind do not change those
    before. Seconds of the verbs are medians of their calls; those of a loop of a device's own, whose verbs nobody sees,
    are of the same engine driven by verbs in the block, where there is one.
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
    timed = _timed(cell, block)
    if plain is None or not fixed or timed is None or cell.overall is None or cell.overall.over_plain is None:
        return None
    source = max(fixed, key=lambda other: other.axes.k)
    rates = _conditional(source)[: cell.axes.k]
    cost, measured = _cost(timed, plain), cell.overall.over_plain
    rounds, length = _rounds(cell), _length(cell)
    expected, verbs = expected_tokens(rates), _verbs(timed)
    return Predicted(
        cell=cell.axes.name,
        acceptance_of=source.axes.name,
        k=cell.axes.k,
        predicted=speed_up(rates, cost),
        constant=speed_up_constant(rates[0] if rates else 0.0, cell.axes.k, cost.per_draft(cell.axes.k)),
        measured=measured,
        tokens=length / expected,
        costs=_mean_step(plain) / cost.plain * cost.round / verbs,
        rest=verbs / (sum(turn.decode for turn in cell.turns) / rounds),
        roofline=_allowed(cell, rates, roofline),
    )


def _allowed(cell: BenchCell, rates: Sequence[float], roofline: Roofline | None) -> float | None:
    try:
        return roofline(cell.axes.device, cell.axes.k, rates) if roofline else None
    except (Inconclusive, UsageError):
        return None


def _timed(cell: BenchCell, block: Sequence[BenchCell]) -> BenchCell | None:
    """The cell whose verbs were timed: itself, or the same engine's driven by verbs."""
    engine = cell.axes.device.partition(",")[0]
    for other in (cell, *block):
        same = other.axes.device.partition(",")[0] == engine and other.axes.k == cell.axes.k
        if same and other.overall and all(verb in other.overall.stage_ms for verb in VERBS):
            return other
    return None


def _cost(timed: BenchCell, plain: BenchCell) -> RoundCost:
    """Medians, in seconds."""
    assert timed.overall is not None and plain.overall is not None
    draft, verify, commit = (timed.overall.stage_ms[verb].median / 1000 for verb in VERBS)
    lanes = plain.axes.lanes  # a step of a batch gives a token to each lane
    return RoundCost(draft, verify, commit, plain.overall.token_ms.median / 1000 * lanes)


def _mean_step(plain: BenchCell) -> float:
    """Seconds of a step, over all of its runs."""
    seconds, tokens = (sum(getattr(turn, part) for turn in plain.turns) for part in ("decode", "decoded"))
    return float(seconds / max(tokens, 1)) * plain.axes.lanes


def _verbs(cell: BenchCell) -> float:
    """Mean seconds of a round's three verbs."""
    return sum(
        sum(turn.stages[verb] for turn in cell.turns) / sum(turn.calls[verb] for turn in cell.turns) for verb in VERBS
    )


def _rounds(cell: BenchCell) -> float:
    """Rounds that were waited for: of a batch those of all lanes run together."""
    if cell.axes.lanes > 1:
        return sum(turn.calls.get("verify", 0) for turn in cell.turns)
    return sum(len(one.emitted) for turn in cell.turns for one in turn.rounds)


def _length(cell: BenchCell) -> float:
    """Tokens of a round; of a batch, of a lane in a round of all, whose lanes may have ended."""
    tokens = sum(turn.decoded for turn in cell.turns)
    return tokens / _rounds(cell) / cell.axes.lanes


def _speculation(cell: BenchCell) -> bool:
    return bool(cell.overall and cell.overall.speculation)


def _conditional(cell: BenchCell) -> list[float]:
    """Acceptance by position; nothing where no round came that far."""
    assert cell.overall is not None and cell.overall.speculation is not None
    return [rate or 0.0 for rate in cell.overall.speculation.conditional]
