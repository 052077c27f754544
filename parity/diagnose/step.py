"""One step of a diagnosis: full trials of what may cause the first failing stage, on this prompt and over all
prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from math import inf

from parity.diagnose.counterfactual_runs import Assumption, CheckableHypothesis
from parity.diagnose.residuals import FELL, Residual, residuals
from parity.diagnose.search import HypothesisSearch, Trial, trial_order
from parity.diagnose.trials import PromptTrials, ResidualChange, attempt
from parity.golden.views import JoinedGoldens, JoinedSlices

CONFIRMED = 5
"""The best trials that get a trial over every stage, and over every prompt where one does not show the failure."""

ELSEWHERE = 3
"""Other prompts that the named causes have to explain as well, at the most."""

MOST = 0.95
"""A hypothesis that leaves a residual above the floor is still named if it explains this much of the error: a
device may do the same wrong thing otherwise at an edge (the first row, the last slot)."""


@dataclass
class DiagnosisStep:
    """What fails under the known causes, and full trials of what may be the next cause.

    Args:
        trials: of the prompt.
        known: the causes named so far.
        rounds: how many of the prompt's rounds are judged.
        left: the residuals under `known`, by stage.
        first: the first of them that still asks for a cause.
    """

    trials: PromptTrials
    known: tuple[Assumption, ...]
    rounds: int
    left: dict[str, Residual]
    first: Residual
    _changes: dict[int, ResidualChange] = field(default_factory=dict)

    def full(self, trial: Trial) -> ResidualChange:
        """Every stage without and with a trial's assumptions, by its own floor; empty where they cannot apply."""
        if id(trial) not in self._changes:
            change = attempt(lambda: self.trials.weigh(self.known, trial.assumed, self.rounds, own_floor=True))
            self._changes[id(trial)] = change or ResidualChange({}, {})
        return self._changes[id(trial)]

    def at_first(self, trial: Trial) -> Trial:
        """The trial over all the rounds judged, at the first failing stage."""
        change, stage = self.full(trial), self.first.stage
        return replace(trial, before=change.before[stage], after=change.after[stage])

    def confirm(self, satisfying: Sequence[Trial]) -> Trial | None:
        """Of the trials that settle the first failing stage, the one that leaves the fewest others and breaks none."""
        good = [trial for trial in satisfying[:CONFIRMED] if self._harmless(trial) and self.at_first(trial).settles]
        good = [trial for trial in good if self.holds(trial)] or good
        good.sort(key=self._rank)
        tied = [trial for trial in good if self._rank(trial)[:2] == self._rank(good[0])[:2]]
        return self._tie_broken(tied) if tied else None

    def holds(self, trial: Trial) -> bool:
        """Whether a trial whose shapes were wrong has the device's shapes in later rounds too, and breaks nothing
        there."""
        if self.first.error < inf or self.rounds == self.trials.rounds:
            return True
        wide = attempt(lambda: self.trials.weigh(self.known, trial.assumed, self.trials.rounds, own_floor=True))
        return wide is not None and wide.after[self.first.stage].error < inf and not _broken(wide.before, wide.after)

    def nearest(self, made: Sequence[Trial]) -> Trial | None:
        """The trial that explains most of the first failing stage, if that is nearly all of it, and harms no row."""
        stage, rounds = self.first.stage, self.rounds
        for trial in made[:CONFIRMED]:
            if trial.explained < MOST or not self._harmless(trial) or self.at_first(trial).explained < MOST:
                continue
            if self.trials.harms_no_row(self.known, trial.assumed, rounds, stage):
                return trial
        return None

    def _tie_broken(self, tied: list[Trial]) -> Trial:
        """Trials alike in the first rounds differ in later ones of the prompt, or on another prompt."""
        places = chain([self.trials], islice(self.trials.other_prompts(), ELSEWHERE))
        while len(tied) > 1 and (trials := next(places, None)):
            left = [self._left_on(trials, trial) for trial in tied]
            tied = [trial for trial, error in zip(tied, left, strict=True) if error <= min(left) * FELL]
        return tied[0]

    def _left_on(self, trials: PromptTrials, trial: Trial) -> float:
        """What a trial leaves at the first failing stage over all rounds of a prompt."""
        stage = self.first.stage
        change = attempt(lambda: trials.weigh(self.known, trial.assumed, trials.rounds, [stage], last=stage))
        return change.after[stage].error if change else inf

    def _harmless(self, trial: Trial) -> bool:
        """No stage that was within its bounds fails with it."""
        after = self.full(trial).after
        return bool(after) and not _broken(self.left, after)

    def _rank(self, trial: Trial) -> tuple[float, ...]:
        """Fewest failing stages left; then the least residual, the fewest assumptions."""
        return sum(not residual.settled for residual in self.full(trial).after.values()), *trial_order(trial)


def _broken(before: dict[str, Residual], after: dict[str, Residual]) -> bool:
    """Whether a stage that was within its bounds no longer is."""
    return any(not left.settled and name in before and before[name].worst <= 1.0 for name, left in after.items())


def joint_residuals(parts: Sequence[PromptTrials], assumed: Sequence[Assumption]) -> dict[str, Residual]:
    """What assumptions leave at every stage of all these prompts, judged as one comparison."""
    views = [(part.counterfactual(assumed, part.rounds), part.cut(part.rounds)[1]) for part in parts]
    golden, run = JoinedGoldens([view for view, _ in views]), JoinedSlices([cut for _, cut in views])
    return residuals(golden, run, parts[0].policy)


def explain_over_all_prompts(
    trials: PromptTrials, hypotheses: Sequence[CheckableHypothesis], first: Residual
) -> tuple[Trial | None, list[Trial], dict[str, Residual]]:
    """Explain a stage that fails over all prompts and over none alone.

    Every hypothesis is tried on the prompt where it first shows; those that explain most there are judged over all.

    Returns:
        The trial that brings the stage back to its floor, or None; every trial made; what the first leaves.
    """
    made = HypothesisSearch(trials, hypotheses, (), first).each_alone()
    parts = sorted((trials, *trials.same_comparison()), key=lambda part: part.prompt)
    before = joint_residuals(parts, ())
    for trial in [trial for trial in made if trial.explained > 0][:CONFIRMED]:
        after = attempt(partial(joint_residuals, parts, trial.assumed))
        if after and first.stage in after and first.stage in before:
            whole = replace(trial, before=before[first.stage], after=after[first.stage])
            if whole.settles and not any(left.red and not before[name].red for name, left in after.items()):
                return whole, made, after
    return None, made, before


def first_unexplained(
    trials: PromptTrials, known: Sequence[Assumption], evidence: Sequence[Residual]
) -> tuple[PromptTrials, Residual] | None:
    """The first other prompt, and its first stage, that the known causes do not explain; prompts that fail first."""
    failing = {residual.place.prompt for residual in evidence if residual.place}
    others = sorted(trials.same_comparison(), key=lambda other: other.prompt not in failing)
    for other in others[:ELSEWHERE]:
        before = other.residuals((), other.rounds)
        after = attempt(partial(other.residuals, known, other.rounds))
        for name, left in (before if after is None else after).items():
            if left.red and not (name in before and before[name].red and before[name].settled_by(left)):
                return other, left
    return None
