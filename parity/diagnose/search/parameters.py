"""Hypotheses with a continuous parameter: the value that leaves least."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from parity.diagnose.fitting import (
    BESIDE_CLEAN,
    STEPS,
    VERTICES,
    Curve,
    beside_clean,
    clean_value,
    golden_section,
    parabolas,
)
from parity.diagnose.hypothesis import Assumption, CheckableHypothesis
from parity.diagnose.ranking import Trial, trial_order
from parity.diagnose.search.stage_trials import StageTrials


def fitted(stage: StageTrials) -> Iterator[Iterator[Trial]]:
    """Every parameter alone, in one tier: a scan, then golden section."""
    yield (trial for hypothesis in stage.hypotheses for trial in best_value(stage, hypothesis))


def best_value(
    stage: StageTrials,
    hypothesis: CheckableHypothesis,
    beside: tuple[Assumption, ...] = (),
    weigh: Callable[[tuple[Assumption, ...]], Trial | None] | None = None,
    measure: Callable[[Trial], float] = lambda trial: trial.left,
    most: float = 1.0,
) -> list[Trial]:
    """The best value of one parameter; none where nothing is fitted.

    Args:
        beside: what else is assumed.
        weigh: makes a trial, `StageTrials.one` by default.
        measure: what a trial leaves.
        most: what a point of the scan has to leave less than.
    """
    fit, weigh = hypothesis.fit, weigh or stage.one
    if fit is None:
        return []
    made: dict[float, Trial | None] = {}

    def left(value: float) -> float:
        trial = made[value] = weigh((*beside, (hypothesis, value)))
        return measure(trial) if trial else inf

    error = Curve(fit, left)
    ends = error.scan(error.low, error.high)
    if error.least < (most if stage.first.error < inf else inf):
        golden_section(error, *ends, STEPS)
        if not fit.whole:
            parabolas(error, *ends, error.seen, VERTICES)
    elif not fit.whole and stage.first.error < inf:
        clean = clean_value(fit, stage.trials.golden.manifest.model)
        if clean is not None:
            beside_clean(error, error.at(clean), error.low, error.high)
    return sorted((trial for trial in made.values() if trial), key=lambda trial: (measure(trial), trial_order(trial)))[
        :1
    ]


MOST_WRONG, CORRECTIONS = 0.25, 3
"""The share of the largest error beyond which an element's is of a row that is wrong, and steps towards a value."""


def near_clean(
    stage: StageTrials, hypothesis: CheckableHypothesis, weigh: Callable[[tuple[Assumption, ...]], Trial | None]
) -> list[Trial]:
    """A value of a parameter close to the one that changes nothing, for rows that are not known: how far the elements
    that are most wrong go along with a small step says how far to go."""
    fit, gap = hypothesis.fit, stage.gap
    clean = None if fit is None or fit.whole else clean_value(fit, stage.trials.golden.manifest.model)
    if fit is None or gap is None or clean is None or not gap.size:
        return []
    curve, most = Curve(fit, lambda value: inf), abs(gap) >= MOST_WRONG * abs(gap).max(initial=0.0)
    step, trial = (curve.high - curve.low) * BESIDE_CLEAN, None
    for _ in range(CORRECTIONS):
        place = curve.at(clean) + step
        trial = weigh(((hypothesis, curve.value(place)),)) if curve.low <= place <= curve.high else None
        moved = trial.moved if trial else None
        if moved is None or moved.shape != gap.shape or not moved[most].any():
            return []
        step *= float(gap[most] @ moved[most]) / float(moved[most] @ moved[most])
    return [trial] if trial else []
