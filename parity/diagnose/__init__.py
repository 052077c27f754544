"""From a red comparison to its causes: counterfactual references, peeled off in the order in which they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from math import inf
from typing import Any

from parity.compare.report import FAIL, Place, Report
from parity.diagnose.evidence import CONFIRMED, ELSEWHERE, elsewhere, failures, faint
from parity.diagnose.explain import FELL, Residual
from parity.diagnose.search import Search, Trial, consistent, order, ranked
from parity.diagnose.signature import signature
from parity.diagnose.trials import Assumption, Trials, Weighed, attempt

CAUSES = 6
"""Causes peeled off one after another at the most."""

CASE = "target.embed"
"""A device whose rows differ in number here ran another prompt."""

MOST = 0.95
"""A hypothesis that leaves a residual above the floor is still named if it explains this much of the error: a
device may do the same wrong thing otherwise at an edge (the first row, the last slot)."""


@dataclass(frozen=True)
class Cause:
    """One hypothesis that brings a stage back to its floor.

    `before` and `after` are residuals at `stage`, the first red one, over the same rounds and rows; `whole` says that it
    is back at its floor; `remaining` counts stages still red with it; `others` are hypotheses that explain the stage as well
    (they cannot be told apart by it).
    """

    hypothesis: str
    says: str
    value: Any
    stage: str
    place: Place | None
    explained: float
    before: Residual
    after: Residual
    remaining: int
    whole: bool = True
    fix: str = ""
    seen: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """Causes in the order in which they show; `unexplained` is the first stage that stays red, with its signature.

    `verdict` is the comparison's, `evidence` what failed in it, in sentences. `nearest` are the best hypotheses for what
    is unexplained, with the share that each explains.
    """

    mode: str
    prompt: int
    first: Place | None
    causes: tuple[Cause, ...] = ()
    unexplained: Residual | None = None
    nearest: tuple[tuple[str, float], ...] = ()
    signature: tuple[str, ...] = ()
    trials: int = 0
    verdict: str = FAIL
    evidence: tuple[str, ...] = ()


def diagnose(trials: Trials, hypotheses: Sequence[Any], first: Place, evidence: Sequence[Residual] = ()) -> Diagnosis:
    """Explain a device's errors on one prompt, over all its rounds, one cause after another.

    Args:
        first: where the run first diverges.
        evidence: what failed in the comparison; what the prompt alone does not show is looked for in all of its prompts.
    """
    rounds = trials.rounds
    known: tuple[Assumption, ...] = ()
    causes: list[Cause] = []
    made: list[Trial] = []
    start = left = trials.residuals((), rounds)
    while red := [residual for residual in left.values() if _open(residual, start, known)]:
        if red[0].error == inf and red[0].place.round < rounds:
            rounds = red[0].place.round  # another shape cannot be forced: what comes behind tells of other states
            start, left = trials.residuals((), rounds), trials.residuals(known, rounds)
            continue
        if len(causes) >= CAUSES:
            break
        peel = Peel(trials, known, rounds, left, red[0])
        found, made = Search(trials, hypotheses, known, red[0]).best(peel.confirm)
        found = found or peel.nearest(made)
        if found is None:
            break
        left = peel.full(found).after
        causes += _causes(peel.at_first(found), peel.first, left, made, peel.holds(found))
        known = (*known, *found.assumed)
        if red[0].stage == CASE and red[0].error == inf and trials.drive is not None:
            trials = trials.rebased(known)
            rounds = trials.rounds
            start = left = trials.residuals((), rounds)
        elif rounds < trials.rounds and (wider := attempt(lambda: trials.residuals(known, trials.rounds))):
            rounds, start, left = trials.rounds, trials.residuals((), trials.rounds), wider
    told = Diagnosis(trials.mode, trials.prompt, first, tuple(causes))
    if red:
        told = replace(told, unexplained=red[0], nearest=near(made), signature=looks(trials, red[0], rounds))
    told = renumbered(told, trials.prompt)
    if causes and not red:
        told = _beyond(told, trials, known, evidence)
    elif evidence and not red:
        told = _faint(told, trials, hypotheses, evidence)
    return replace(told, trials=trials.count)


def renumbered(told: Diagnosis, prompt: int) -> Diagnosis:
    """A diagnosis of a view of one prompt, in the numbers of the golden that the prompt is of."""

    def place(one: Place | None) -> Place | None:
        return one and replace(one, prompt=prompt)

    causes = tuple(replace(cause, place=place(cause.place)) for cause in told.causes)
    rest = told.unexplained and replace(told.unexplained, place=place(told.unexplained.place))
    return replace(told, prompt=prompt, first=place(told.first), causes=causes, unexplained=rest)


def inconclusive(report: Report) -> Diagnosis:
    """Nothing failed, and something that would have shown a failure is missing."""
    return undecided(report.mode, report.verdict, failures(report))


def undecided(mode: str, verdict: str, evidence: Sequence[str]) -> Diagnosis:
    """No failure, and what is missing, in sentences."""
    return Diagnosis(mode, 0, None, verdict=verdict, evidence=tuple(evidence))


def _beyond(told: Diagnosis, trials: Trials, known: Sequence[Assumption], evidence: Sequence[Residual]) -> Diagnosis:
    """The same with what the causes of one prompt leave in others."""
    rest = elsewhere(trials, known, evidence)
    if rest is None:
        return told
    other, residual = rest
    placed = residual.place and replace(residual.place, prompt=other.prompt)
    return replace(told, unexplained=replace(residual, place=placed), signature=looks(other, residual, other.rounds))


def _faint(told: Diagnosis, trials: Trials, hypotheses: Sequence[Any], evidence: Sequence[Residual]) -> Diagnosis:
    """The same with what the whole comparison shows and no prompt alone: named by all prompts, or said to be unexplained."""
    first = evidence[0]
    if first.error == inf or first.stage not in trials.residuals((), trials.rounds):
        return replace(told, unexplained=first, signature=looks(trials, first, trials.rounds))
    found, made, left = faint(trials, hypotheses, first)
    if found is not None:
        return replace(told, causes=tuple(_causes(found, first, left, made, whole=True)))
    return replace(told, unexplained=first, nearest=near(made), signature=looks(trials, first, trials.rounds))


def near(made: Sequence[Trial]) -> tuple[tuple[str, float], ...]:
    """The three best trials that explain something, with the share that each explains."""
    return tuple((_says(trial), trial.explained) for trial in ranked(made)[:3] if trial.explained > 0)


def looks(trials: Trials, rest: Residual, rounds: int) -> tuple[str, ...]:
    """The signature of what is unexplained on this prompt."""
    golden, run = trials.cut(rounds)
    return tuple(signature(golden, run, rest))


def _open(residual: Residual, start: dict[str, Residual], known: Sequence[Assumption]) -> bool:
    """Whether a stage still asks for a cause: red, and not what the known ones bring about."""
    before = start.get(residual.stage, residual)
    if not residual.red or (known and (before.settled_by(residual) if before.red else residual.settled)):
        return False
    own = any(consistent(hypothesis, residual.stage) for hypothesis, _ in known)
    return not (own and residual.stage in start and start[residual.stage].explained(residual) >= MOST)


@dataclass
class Peel:
    """One layer of a diagnosis: what is red under the known causes, and full trials of what might be the next."""

    trials: Trials
    known: tuple[Assumption, ...]
    rounds: int
    left: dict[str, Residual]
    first: Residual
    made: dict[int, Weighed] = field(default_factory=dict)

    def full(self, trial: Trial) -> Weighed:
        """Every stage without a trial's assumptions and with them, by its own floor; nothing where they cannot apply."""
        if id(trial) not in self.made:
            found = attempt(lambda: self.trials.weigh(self.known, trial.assumed, self.rounds, own_floor=True))
            self.made[id(trial)] = found or Weighed({}, {})
        return self.made[id(trial)]

    def at_first(self, trial: Trial) -> Trial:
        """The trial over all the rounds judged, at the first red stage."""
        found, stage = self.full(trial), self.first.stage
        return replace(trial, before=found.before[stage], after=found.after[stage])

    def confirm(self, satisfying: Sequence[Trial]) -> Trial | None:
        """Of the trials that settle the first red stage, the one that leaves the fewest others and breaks none."""
        good = [trial for trial in satisfying[:CONFIRMED] if self._harmless(trial) and self.at_first(trial).settles]
        good = [trial for trial in good if self.holds(trial)] or good
        good.sort(key=self._rank)
        alike = [trial for trial in good if self._rank(trial)[:2] == self._rank(good[0])[:2]]
        return self._parted(alike) if alike else None

    def holds(self, trial: Trial) -> bool:
        """Whether a trial has the device's shapes in the later rounds as well, where shapes are what is wrong, and breaks nothing there."""
        if self.first.error < inf or self.rounds == self.trials.rounds:
            return True
        wide = attempt(lambda: self.trials.weigh(self.known, trial.assumed, self.trials.rounds, own_floor=True))
        return wide is not None and wide.after[self.first.stage].error < inf and not _broken(wide.before, wide.after)

    def _parted(self, alike: list[Trial]) -> Trial:
        """Ties of the first rounds part in the later ones of the prompt, or on another prompt."""
        places = chain([self.trials], islice(self.trials.elsewhere(), ELSEWHERE))
        while len(alike) > 1 and (trials := next(places, None)):
            left = [self._whole(trials, trial) for trial in alike]
            alike = [trial for trial, error in zip(alike, left, strict=True) if error <= min(left) * FELL]
        return alike[0]

    def _whole(self, trials: Trials, trial: Trial) -> float:
        """What a trial leaves at the first red stage over all rounds of a prompt."""
        stage = self.first.stage
        found = attempt(lambda: trials.weigh(self.known, trial.assumed, trials.rounds, [stage], last=stage))
        return found.after[stage].error if found else inf

    def nearest(self, made: Sequence[Trial]) -> Trial | None:
        """The trial that explains most of the first red stage, if that is nearly all of it, and harms no row."""
        good = (trial for trial in made[:CONFIRMED] if trial.explained >= MOST and self._harmless(trial))
        stage, rounds = self.first.stage, self.rounds
        return next(
            (
                one
                for one in good
                if self.at_first(one).explained >= MOST and self.trials.spares(self.known, one.assumed, rounds, stage)
            ),
            None,
        )

    def _harmless(self, trial: Trial) -> bool:
        """No stage that was within its bounds becomes red."""
        after = self.full(trial).after
        return bool(after) and not _broken(self.left, after)

    def _rank(self, trial: Trial) -> tuple:
        """Fewest stages left red; then the fewest assumptions, the least residual."""
        return sum(not one.settled for one in self.full(trial).after.values()), *order(trial)


def _broken(before: dict[str, Residual], after: dict[str, Residual]) -> bool:
    """Whether a stage that was within its bounds is not any more."""
    return any(not one.settled and name in before and before[name].worst <= 1.0 for name, one in after.items())


def _causes(
    found: Trial, first: Residual, left: dict[str, Residual], made: Sequence[Trial], whole: bool
) -> list[Cause]:
    """A trial as judged over all rounds, with what it leaves at every stage."""
    equal = [_says(one) for one in made if one.assumed != found.assumed and one.settles and len(one.assumed) == 1]
    return [
        Cause(
            hypothesis=hypothesis.id,
            says=hypothesis.describe(value),
            value=value,
            stage=first.stage,
            place=first.place,
            explained=found.explained,
            before=found.before,
            after=found.after,
            whole=whole and found.settles,
            remaining=sum(not residual.settled for residual in left.values()),
            fix=hypothesis.fix,
            seen=tuple(hypothesis.seen),
            others=tuple(equal[:3]),
        )
        for hypothesis, value in found.assumed
    ]


def _says(trial: Trial) -> str:
    return " and ".join(hypothesis.describe(value) for hypothesis, value in trial.assumed)
