"""What a round costs as the model has it: by its verbs, or, of a loop in one piece, by its rounds of other K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from parity.bench.model import RoundCost
from parity.bench.records import BenchCell, ModelName

VERBS = ("draft", "verify", "commit")
OTHERS = 3
"""Rounds of other K that a line goes through at the least: two leave nothing that shows it is none."""


@dataclass(frozen=True)
class ModelledRound:
    """Seconds of a cell's round by a model, and how far what was measured is from them.

    Attributes:
        costs: seconds as the model has them over those that were measured, of a round; the inverse of a plain step's.
        rest: what neither tokens nor costs explain.
    """

    model: ModelName
    cost: RoundCost
    costs: float
    rest: float


def modelled_round(cell: BenchCell, plain: BenchCell, block: Sequence[BenchCell]) -> ModelledRound | None:
    """The round of a cell: of its own verbs; of a loop in one piece by its rounds of other K, or where those are too
    few by the verbs of the same engine in the block. None where none of these was timed."""
    if _has_verbs(cell):
        return _by_verbs(cell, cell, plain)
    if (found := _by_rounds(cell, plain, block)) is not None:
        return found
    driven = next((other for other in block if _same_engine(other, cell) and _has_verbs(other)), None)
    return None if driven is None else _by_verbs(cell, driven, plain)


def waited_for(cell: BenchCell) -> float:
    """Rounds that were waited for: of a batch those of all lanes run together."""
    if cell.axes.lanes > 1:
        return sum(turn.calls.get("verify", 0) for turn in cell.turns)
    return sum(len(one.emitted) for turn in cell.turns for one in turn.rounds)


def _by_verbs(cell: BenchCell, driven: BenchCell, plain: BenchCell) -> ModelledRound:
    """Medians of the calls of `driven`; what is left is time outside the verbs."""
    assert driven.overall is not None
    cost = RoundCost(sum(driven.overall.stage_ms[verb].median for verb in VERBS) / 1000, _step(plain))
    mean = _verbs(driven)
    return ModelledRound("verbs", cost, _mean_step(plain) / cost.plain * cost.round / mean, mean / _mean_round(cell))


def _by_rounds(cell: BenchCell, plain: BenchCell, block: Sequence[BenchCell]) -> ModelledRound | None:
    """A line through the median seconds of the rounds of other K, of the same loop: this K is left out, so that the
    prediction holds nothing of what it predicts. What is left is that a mean round takes longer than the median one."""
    others = [other for other in block if _same_loop(other, cell) and other.axes.k != cell.axes.k and waited_for(other)]
    if len(others) < OTHERS or not waited_for(cell):
        return None
    slope, start = np.polyfit([other.axes.k for other in others], [_median_round(other) for other in others], 1)
    seconds, own = float(start + slope * cell.axes.k), _median_round(cell)
    if seconds <= 0:
        return None
    cost = RoundCost(seconds, _step(plain))
    return ModelledRound("rounds", cost, _mean_step(plain) / cost.plain * cost.round / own, own / _mean_round(cell))


def _has_verbs(cell: BenchCell) -> bool:
    return cell.overall is not None and all(verb in cell.overall.stage_ms for verb in VERBS)


def _same_engine(one: BenchCell, other: BenchCell) -> bool:
    return one.axes.device.partition(",")[0] == other.axes.device.partition(",")[0] and one.axes.k == other.axes.k


def _same_loop(one: BenchCell, other: BenchCell) -> bool:
    return (one.axes.device, one.axes.decoding) == (other.axes.device, other.axes.decoding)


def _median_round(cell: BenchCell) -> float:
    """Seconds of a round: the mean of each repeat, their median."""
    by_repeat: dict[int, list[float]] = {}
    for turn in cell.turns:
        rounds = by_repeat.setdefault(turn.repeat, [0.0, 0.0])
        rounds[0] += turn.decode
        rounds[1] += sum(len(one.emitted) for one in turn.rounds)
    return median(seconds / count for seconds, count in by_repeat.values() if count)


def _mean_round(cell: BenchCell) -> float:
    return sum(turn.decode for turn in cell.turns) / waited_for(cell)


def _step(plain: BenchCell) -> float:
    """Seconds of a step of plain decoding, the median; a step of a batch gives a token to each lane."""
    assert plain.overall is not None
    return plain.overall.token_ms.median / 1000 * plain.axes.lanes


def _mean_step(plain: BenchCell) -> float:
    """Seconds of a step, over all of its runs."""
    seconds, tokens = (sum(getattr(turn, part) for turn in plain.turns) for part in ("decode", "decoded"))
    return float(seconds / max(tokens, 1)) * plain.axes.lanes


def _verbs(cell: BenchCell) -> float:
    """Mean seconds of a round's three verbs."""
    return sum(
        sum(turn.stages[verb] for turn in cell.turns) / sum(turn.calls[verb] for turn in cell.turns) for verb in VERBS
    )
