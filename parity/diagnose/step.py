"""One step of a diagnosis: full trials of what may cause the first failing stage, on this prompt and over all
prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from math import inf

from parity.diagnose.attempts import attempt
from parity.diagnose.clock import TimeIsUp
from parity.diagnose.conditional import Conditional
from parity.diagnose.counterfactual_runs import NothingChanged
from parity.diagnose.hypothesis import Assumption, CheckableHypothesis
from parity.diagnose.ranking import Trial, ids_of, trial_order
from parity.diagnose.residuals import FELL, Residual, residuals
from parity.diagnose.search import AHEAD, HypothesisSearch
from parity.diagnose.trials import PromptTrials, ResidualChange
from parity.golden.views import JoinedGoldens, JoinedSlices

CONFIRMED = 5
"""The best hypotheses that get a trial over every stage, and over every prompt where one does not show the failure."""

VALUES = 3
"""The best values of each of them."""

ELSEWHERE = 3
"""Other prompts that the named causes have to explain as well, at the most."""

BESIDE = 2
"""Other prompts on which a cause may not leave a stage wrong that it settles, at the most."""

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

    Attributes:
        alike: the trials that nothing observed tells apart from the confirmed one.
    """

    trials: PromptTrials
    known: tuple[Assumption, ...]
    rounds: int
    left: dict[str, Residual]
    first: Residual
    alike: list[Trial] = field(default_factory=list)
    _changes: dict[int, ResidualChange] = field(default_factory=dict)

    def full(self, trial: Trial) -> ResidualChange:
        """Every stage without and with a trial's assumptions, by its own floor; empty where they cannot apply.

        Over some rounds more where those judged do not determine what it changes.
        """
        if id(trial) not in self._changes:
            later = min(self.rounds + AHEAD, self.trials.rounds)
            change = attempt(
                partial(self._weigh, trial, self.rounds), lambda: attempt(partial(self._weigh, trial, later))
            )
            self._changes[id(trial)] = change or ResidualChange({}, {})
        return self._changes[id(trial)]

    def _weigh(self, trial: Trial, rounds: int) -> ResidualChange:
        return self.trials.weigh(self.known, trial.assumed, rounds, own_floor=True)

    def at_first(self, trial: Trial) -> Trial:
        """The trial over all the rounds judged, at the first failing stage."""
        change, stage = self.full(trial), self.first.stage
        return replace(trial, before=change.before[stage], after=change.after[stage])

    def explained(self, trial: Trial) -> float:
        """Share of the squared error that a trial explains over all the rounds judged, in whichever precision it is
        more: where it rounds to few bits, what bfloat16 rounds before shows in bfloat16 alone."""
        exact, stage = self.at_first(trial).explained, self.first.stage
        rough = attempt(lambda: self.trials.explained_in_bfloat16(self.known, trial.assumed, self.rounds, stage))
        return max(exact, rough or 0.0)

    def confirm(self, satisfying: Sequence[Trial]) -> Trial | None:
        """Of the trials that settle the first failing stage, the one that leaves the fewest others and breaks none."""
        leading = leading_trials(satisfying)
        good = [trial for trial in leading if self._harmless(trial) and self.at_first(trial).settles]
        good = [trial for trial in good if self.holds(trial)] or good
        good.sort(key=self._rank)
        tied = self._tie_broken([trial for trial in good if self._rank(trial)[:2] == self._rank(good[0])[:2]])
        self.alike = tied[1:]
        return tied[0] if tied else None

    def holds(self, trial: Trial) -> bool:
        """Whether a trial whose shapes were wrong has the device's shapes in later rounds too, and breaks nothing
        there."""
        if self.first.error < inf or self.rounds == self.trials.rounds:
            return True
        wide = attempt(lambda: self.trials.weigh(self.known, trial.assumed, self.trials.rounds, own_floor=True))
        return wide is not None and wide.after[self.first.stage].error < inf and not _broken(wide.before, wide.after)

    def doubted(self, trial: Trial) -> bool:
        """Whether a stage that a trial changes as well still fails with it: a cause that is right settles both."""
        change = self.full(trial)
        return any(
            after.red and not after.settled and after.error != change.before[name].error
            for name, after in change.after.items()
            if name != self.first.stage and name in change.before
        )

    def spoils(self, trial: Trial) -> bool:
        """Whether a trial leaves the first failing stage wrong on another prompt, as far as there is time to ask."""
        with suppress(TimeIsUp):
            return self.trials.contained and any(self._fails_on(other, trial) for other in self._beside())
        return False

    def _beside(self) -> Iterator[PromptTrials]:
        self.trials.clock.check()
        return islice(self.trials.other_prompts(), BESIDE)

    def _fails_on(self, other: PromptTrials, trial: Trial) -> bool:
        stage = self.first.stage
        change = attempt(lambda: other.weigh(self.known, trial.assumed, other.rounds, (stage,), stage))
        return change is not None and not change.before[stage].settled_by(change.after[stage])

    def nearest(self, made: Sequence[Trial]) -> Trial | None:
        """The trial that explains most of the first failing stage, if that is nearly all of it, and harms no row.

        Under a condition it has to leave nothing: of so many conditions one that is nearly right is easily found.
        """
        stage, rounds = self.first.stage, self.rounds
        free = [trial for trial in made if not any(isinstance(one, Conditional) for one, _ in trial.assumed)]
        for trial in leading_trials(free):
            if trial.explained < MOST:
                continue
            if not self._harmless(trial) or self.at_first(trial).explained < MOST:
                continue
            if self.trials.harms_no_row(self.known, trial.assumed, rounds, stage):
                return trial
        return None

    def _tie_broken(self, tied: list[Trial]) -> list[Trial]:
        """The trials that leave least in all rounds of the prompt, and then on other prompts, the best first; of those
        that leave the same, the ones that emit freely what the device does. Once the time is up, those left by then."""
        if _differ_in_words(tied):
            return tied
        places = chain([self.trials], islice(self.trials.other_prompts(), ELSEWHERE))
        with suppress(TimeIsUp):
            while len(tied) > 1 and (trials := next(places, None)):
                left = [self._left_on(trials, trial) for trial in tied]
                fewest = min(stages for stages, _ in left)
                least = min(error for stages, error in left if stages == fewest)
                tied = [
                    trial
                    for trial, (stages, error) in zip(tied, left, strict=True)
                    if stages == fewest and error <= least * FELL
                ]
            if len(tied) > 1:
                tied = [trial for trial in tied if self._emits(trial)] or tied
        return tied

    def _emits(self, trial: Trial) -> bool:
        return bool(attempt(lambda: self.trials.emits((*self.known, *trial.assumed))))

    def _left_on(self, trials: PromptTrials, trial: Trial) -> tuple[float, float]:
        """How many stages a trial leaves unsettled over all rounds of a prompt, and what it leaves at the first failing
        one; where a condition holds for none of its rows, what is there without it."""

        def left() -> dict[str, Residual]:
            try:
                return trials.weigh(self.known, trial.assumed, trials.rounds, own_floor=True).after
            except NothingChanged:
                return trials.residuals(self.known, trials.rounds)

        after = attempt(left)
        if after is None:
            return inf, inf
        first = after.get(self.first.stage)  # a prompt without rounds has none
        return sum(not residual.settled for residual in after.values()), first.error if first else 0.0

    def _harmless(self, trial: Trial) -> bool:
        """No stage that was within its bounds, as the references judge it without the trial as well, fails with it."""
        change = self.full(trial)
        left = {name: residual for name, residual in self.left.items() if _within(change.before.get(name, residual))}
        return bool(change.after) and not _broken(left, change.after)

    def _rank(self, trial: Trial) -> tuple[float, ...]:
        """Fewest failing stages left; then the least residual, the fewest assumptions."""
        return sum(not residual.settled for residual in self.full(trial).after.values()), *trial_order(trial)


def _differ_in_words(tied: Sequence[Trial]) -> bool:
    """Whether trials are one assumption under conditions that hold for the same rows, of other prompts too, by which
    a search for conditions narrows them down."""
    alone = [trial.assumed[0] for trial in tied if len(trial.assumed) == 1]
    of = {(each.of.id, value) for each, value in alone if isinstance(each, Conditional)}
    return len(tied) > 1 and len(of) == 1 and sum(isinstance(each, Conditional) for each, _ in alone) == len(tied)


def leading_trials(ranked: Sequence[Trial]) -> list[Trial]:
    """Of trials, the best first, those of the best hypotheses with their best values."""
    values: dict[tuple[str, ...], list[Trial]] = {}
    for trial in ranked:
        values.setdefault(ids_of(trial), []).append(trial)
    kept = {id(trial) for several in islice(values.values(), CONFIRMED) for trial in several[:VALUES]}
    return [trial for trial in ranked if id(trial) in kept]


def _broken(before: dict[str, Residual], after: dict[str, Residual]) -> bool:
    """Whether a stage that was within its bounds no longer is."""
    return any(not left.settled and name in before and _within(before[name]) for name, left in after.items())


def _within(residual: Residual) -> bool:
    return residual.worst <= 1.0


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
    for trial in leading_trials([trial for trial in made if trial.explained > 0]):
        after = attempt(partial(joint_residuals, parts, trial.assumed))
        if after and first.stage in after and first.stage in before:
            whole = replace(trial, before=before[first.stage], after=after[first.stage])
            if whole.settles and not any(left.red and not before[name].red for name, left in after.items()):
                return whole, made, after
    return None, made, before


def first_unexplained(
    trials: PromptTrials, known: Sequence[Assumption], evidence: Sequence[Residual]
) -> tuple[PromptTrials, Residual] | None:
    """The first other prompt, and its first stage, that the known causes do not explain; prompts that fail first, and
    where the comparison is of one alone those that the device is run on anew."""
    failing = {residual.place.prompt for residual in evidence if residual.place}
    others = sorted(trials.same_comparison(), key=lambda other: other.prompt not in failing)
    for other in others[:ELSEWHERE] or islice(trials.other_prompts(), BESIDE):
        before = other.residuals((), other.rounds)
        after = attempt(partial(other.residuals, known, other.rounds))
        for name, left in (before if after is None else after).items():
            if left.red and not (name in before and before[name].red and before[name].settled_by(left)):
                return other, left
    return None
