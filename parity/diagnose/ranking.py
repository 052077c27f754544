"""What a hypothesis did to one stage, and which of several did most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from parity.diagnose.hypothesis import Assumption, CheckableHypothesis
from parity.diagnose.residuals import Residual
from parity.stages import matches


@dataclass(frozen=True)
class Trial:
    """One set of assumptions, and the first failing stage without and with it, over the same rounds and rows.

    `sample` is one of what they change of it, see `ResidualChange`.
    """

    assumed: tuple[Assumption, ...]
    before: Residual
    after: Residual
    doubted: bool = False
    sample: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def moved(self) -> np.ndarray | None:
        """The sample; what is not determined counts as unchanged."""
        return None if self.sample is None else np.nan_to_num(self.sample)

    @property
    def settles(self) -> bool:
        """Whether the stage failed, and is back at its floor with them."""
        return self.before.red and self.before.settled_by(self.after) and self.before.fell_to(self.after)

    @property
    def left(self) -> float:
        """What it leaves, as a share of the error."""
        return self.before.share(self.after)

    @property
    def explained(self) -> float:
        """Share of the squared error that is gone."""
        return self.before.explained(self.after)


def can_show_in(hypothesis: CheckableHypothesis, stages: Iterable[str]) -> bool:
    """Whether a hypothesis can show first at one of these stages."""
    return any(matches(glob, stage) for stage in stages for glob in hypothesis.stages)


def best_of_each(trials: Iterable[Trial]) -> list[Trial]:
    """The best trial of every hypothesis, or pair of them, the best first."""
    best: dict[tuple[str, ...], Trial] = {}
    for trial in ranked_trials(trials):
        best.setdefault(ids_of(trial), trial)
    return list(best.values())


def ids_of(trial: Trial) -> tuple[str, ...]:
    """The hypotheses of a trial, whatever their values."""
    return tuple(hypothesis.id for hypothesis, _ in trial.assumed)


def ranked_trials(trials: Iterable[Trial]) -> list[Trial]:
    """The least residual first; among equals fewer assumptions, then the cheaper, then what was met in public."""
    return sorted(trials, key=trial_order)


def trial_order(trial: Trial) -> tuple[float, int, int, bool]:
    """What trials are ranked by."""
    hypotheses = [hypothesis for hypothesis, _ in trial.assumed]
    error = float(f"{trial.left:.2e}")  # residuals that differ behind the third digit are equal
    unseen = not all(hypothesis.seen for hypothesis in hypotheses)
    return error, len(hypotheses), sum(hypothesis.cost for hypothesis in hypotheses), unseen
