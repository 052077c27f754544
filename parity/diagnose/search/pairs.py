"""Two hypotheses at once: the leaders with what goes best with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import numpy as np

from parity.diagnose.ranking import Trial, best_of_each, ranked_trials
from parity.diagnose.search.parameters import best_value
from parity.diagnose.search.stage_trials import SHARE, StageTrials

LEADERS = 2
"""The hypotheses that explain most alone; each is tried with others."""

BESIDE = 32
"""The hypotheses with which a leader is tried: those that leave least if both do together what they do apart."""

NEARLY, AT_THE_BOUND = 0.95, 2.0
"""What explains so much and leaves no more than so many times its bound is not asked what else is wrong: a device that
does the same wrong thing rounds it otherwise, and one of many hypotheses beside it would take some of that away."""


def pairs(stage: StageTrials, made: Sequence[Trial]) -> Iterator[Iterator[Trial]]:
    """The leaders with the hypotheses that go best with them, then the best pairs with what can be fitted of them."""
    alone = [trial for trial in ranked_trials(made) if len(trial.assumed) == 1]
    if any(leader.after.worst <= AT_THE_BOUND for leader in alone if leader.explained >= NEARLY):
        return
    for leader in best_of_each(trial for trial in alone if trial.explained > SHARE)[:LEADERS]:
        yield stage.each((leader.assumed[0], other.assumed[0]) for other in _beside(stage.gap, leader, alone))
        together = (trial for trial in made if len(trial.assumed) == 2 and trial.assumed[0] == leader.assumed[0])
        better = [pair for pair in ranked_trials(together) if pair.left < leader.left][:LEADERS]
        yield (
            trial
            for pair in better
            for kept, (fitted, _) in (pair.assumed, pair.assumed[::-1])
            for trial in best_value(stage, fitted, (kept,))
        )


def _beside(gap: np.ndarray | None, leader: Trial, alone: Sequence[Trial]) -> list[Trial]:
    """The trials to make together with a leader: those that leave least, if both do what they do apart."""
    others = [trial for trial in alone if trial.assumed[0][0] is not leader.assumed[0][0]]

    def left(other: Trial) -> float:
        parts = [part for part in (gap, leader.moved, other.moved) if part is not None]
        if len(parts) < 3 or len({part.shape for part in parts}) > 1:
            return inf
        return float(np.linalg.norm(parts[0] - parts[1] - parts[2]))

    return sorted(others, key=left)[:BESIDE]
