"""Hypotheses with a continuous parameter: the value that leaves least."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from parity.diagnose.fitting import (
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
