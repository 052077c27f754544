"""Single parts of a layer: a head, group or expert that is missing, or of another size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from parity.diagnose.fitting import constant
from parity.diagnose.hypothesis import Assumption, CheckableHypothesis
from parity.diagnose.ranking import Trial
from parity.diagnose.search.stage_trials import StageTrials

WEIGHED, SIZED = 2, 3
"""The parts of a layer of which each weight is asked for, and those whose size is worked out: what explains most."""

STILL = 1e-3
"""The share of what is left that a change of size takes off, where it is not worth another trial."""

STEPS_OF_SIZE = 5
"""Corrections of a size: what a part adds to a later stage is nearly, not wholly, in proportion to its size."""


def single_parts(stage: StageTrials) -> Iterator[Trial]:
    """A head, group or expert of a layer, then a weight of those that explain most: each missing; and of another size,
    what promises most."""
    missing: dict[Assumption, np.ndarray] = {}
    gap = stage.gap
    if gap is None:
        return
    for hypothesis in sorted((each for each in stage.hypotheses if each.part), key=lambda each: each.cost):
        ranked = sorted(missing, key=lambda each: stage.left_along(missing[each]))
        for place in _places(stage, hypothesis, ranked):
            trial = stage.one(((hypothesis, hypothesis.sized(*place, 0.0)),))
            if trial is None:
                continue
            yield trial
            if trial.moved is not None and trial.moved.shape == gap.shape and trial.moved.any():
                missing[trial.assumed[0]] = trial.moved
    for assumption in sorted(missing, key=lambda each: stage.left_along(missing[each]))[:SIZED]:
        yield from _of_its_size(stage, assumption, gap, missing[assumption])


def _places(stage: StageTrials, hypothesis: CheckableHypothesis, ranked: Sequence[Assumption]) -> list[tuple[int, int]]:
    """Layer and number of each of the parts that it is about; of a weight, of the parts that explain most whole."""
    if hypothesis.cost > 1:
        whole = [value[:2] for other, value in ranked if other.part == hypothesis.part and other.cost == 1]
        return list(dict.fromkeys(whole))[:WEIGHED]
    count = constant(hypothesis.part, stage.trials.golden.manifest.model)
    return [(layer, number) for layer in stage.layers(hypothesis) for number in range(count or 0)]


def _of_its_size(stage: StageTrials, assumption: Assumption, gap: np.ndarray, missing: np.ndarray) -> Iterator[Trial]:
    """The size at which a part explains most: a straight line through the last two sizes, a few times over."""
    hypothesis, (layer, number, _) = assumption
    sizes, moves = [1.0, 0.0], [np.zeros_like(gap), missing]
    for _ in range(STEPS_OF_SIZE):
        along, left = (moves[-1] - moves[-2]) / (sizes[-1] - sizes[-2]), gap - moves[-1]
        if not along.any():
            return
        gain = float(left @ along) / float(along @ along)
        if gain**2 * float(along @ along) <= STILL * float(left @ left):
            return
        trial = stage.one(((hypothesis, hypothesis.sized(layer, number, sizes[-1] + gain)),))
        if trial is None or trial.moved is None or trial.moved.shape != gap.shape:
            return
        yield trial
        sizes.append(sizes[-1] + gain)
        moves.append(trial.moved)
