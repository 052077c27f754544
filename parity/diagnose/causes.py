"""The causes of one prompt's errors, one after another as they show."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf

import numpy as np

from parity.compare.places import sources
from parity.compare.rows import stage_rows
from parity.diagnose.attempts import attempt
from parity.diagnose.cause import Cause, causes_of, said_of
from parity.diagnose.clock import READING, TimeIsUp
from parity.diagnose.components import Component, StageProduct, components
from parity.diagnose.deduced import hidden_before
from parity.diagnose.hypothesis import Assumption, CheckableHypothesis
from parity.diagnose.ranking import Trial, can_show_in
from parity.diagnose.refit import refitted
from parity.diagnose.residuals import Residual
from parity.diagnose.search import HypothesisSearch
from parity.diagnose.step import MOST, DiagnosisStep
from parity.diagnose.trials import PromptTrials
from parity.stages import TARGET_EMBED, inputs

CAUSES = 6
"""Causes named one after another at the most."""

TAKEN_APART, ALIKE = 6, 2
"""Further failing stages in which a part is looked for, once a search is over, and stages of one kind whose part is
told: what attention gives in one layer is off in the next one too."""

CLEARLY = 0.8
"""A hypothesis that explains less than this share of what a part of the computation does is not the cause."""

FAR = 5.0
"""A hypothesis that does not settle the stage and leaves so many times its bound is not the cause where a part leaves
nothing but noise."""

UNEXPLAINED = 2
"""Stages without a cause behind which the search continues: each costs a trial of every hypothesis that fits it."""


class CauseSearch:
    """The search for the causes of one prompt's errors.

    Attributes:
        trials: of the prompt; made anew where a cause changes what the device is fed.
        rounds: how many of the prompt's rounds are judged.
        known, causes: what is named so far.
        start, left: the residuals without and with it.
        made: the trials of the last search, the best first.
        aside: stages that no hypothesis explains.
        unexplained: the first of them.
        parts: in which part of the computation a stage's error lies.
    """

    def __init__(self, trials: PromptTrials, hypotheses: Sequence[CheckableHypothesis]):
        self.trials, self.hypotheses, self.rounds = trials, hypotheses, trials.rounds
        self.known: tuple[Assumption, ...] = ()
        self.causes: list[Cause] = []
        self.made: list[Trial] = []
        self.aside: set[str] = set()
        self.parts: dict[str, Component] = {}
        self.read: set[str] = set()
        self.unexplained: Residual | None = None
        self.start = self.left = trials.residuals((), self.rounds)

    def run(self) -> Residual | None:
        """Name causes until nothing asks for one; the first failing residual that no hypothesis explains, or None."""
        try:
            self._run()
        except TimeIsUp:
            clock = self.trials.clock
            what = "what fails beside the named causes was not looked at"
            if not self.causes:
                what = "no hypothesis was tried to its end" if self.trials.count else "no hypothesis was tried"
            clock.untried = clock.untried or [what]
        if self.unexplained is None and self.trials.clock.untried:
            self.unexplained = next(iter(self._failing()), None)
        if self.unexplained is not None:
            self._doubt(self.unexplained.stage)
        return self.unexplained

    def _doubt(self, stage: str) -> None:
        """Mark the causes that should have explained a stage, and did not."""
        named = self.trials.golden.declared.get(stage)
        layer = named.layer if named else None
        for number, (hypothesis, value) in enumerate(self.known):
            layers = value if isinstance(value, tuple) else (value,)
            elsewhere = hypothesis.layered and not isinstance(value, str) and layer not in layers
            if can_show_in(hypothesis, [stage]) and not elsewhere and stage != self.causes[number].stage:
                says = f"it shows at {stage} as well, which fails with it all the same"
                self.causes[number] = replace(self.causes[number], doubted=says)

    def components(self) -> tuple[tuple[str, Component], ...]:
        """The parts of the stages that no hypothesis explains: where nothing is inherited, of all that fail."""
        named = {cause.stage for cause in self.causes}
        if self.unexplained is not None and self.trials.contained:
            failing = [left for left in self.left.values() if left.red and left.stage not in self.read]
            failing = [left for left in failing if not self._comes_of_deduced(left.stage)]
            with suppress(TimeIsUp), self.trials.clock.until(READING):
                for stage in self._of_every_kind([residual.stage for residual in failing])[:TAKEN_APART]:
                    self.trials.clock.check()
                    if len(self._told_of(stage)) < ALIKE:
                        self._take_apart(self.left[stage])
        return tuple((stage, part) for stage, part in self.parts.items() if stage not in named)

    def _comes_of_deduced(self, stage: str) -> bool:
        """Whether a stage is computed from a deduced one, whose error it has."""
        names, hidden = self.trials.golden.declared, self.trials.hidden
        if hidden is None or stage not in names:
            return False
        return bool({*hidden.stages} & {*sources(stage, names, self.trials.run.followed)})

    def _of_every_kind(self, stages: Sequence[str]) -> list[str]:
        """The first stage of each kind, then the others: what attention gives in one layer is off in the next one too,
        and a cache may tell what its rows do not."""
        firsts = {self._kind(stage): stage for stage in reversed(stages)}
        return sorted(stages, key=lambda stage: firsts[self._kind(stage)] != stage)

    def _kind(self, stage: str) -> str:
        """What a stage is, in whatever layer."""
        named = self.trials.golden.declared.get(stage)
        return named.stage.template if named else stage

    def _told_of(self, stage: str) -> list[str]:
        """Stages of the same kind of which a part leaves nothing."""
        return [other for other, part in self.parts.items() if part.whole and self._kind(other) == self._kind(stage)]

    def _take_apart(self, first: Residual) -> None:
        """Look for the part of the computation in which a stage's error lies: in what its pass left in failing caches
        of its layer first, which says the same of fewer numbers.

        What the stage is computed from has to be right: so it is in a local run, and where a chained one first fails.
        """
        inherited = not self.trials.contained and (self.causes or self.aside)
        if self.known or first.stage in self.read or inherited:
            return
        caches = [stage for stage in self._left_in_caches(first.stage) if stage not in self.read]
        self.read |= {first.stage, *caches}
        for stage in (*caches, first.stage):
            for part in parts_of(self.trials, self.rounds, stage):
                self.parts[stage] = part
            if stage in self.parts and self.parts[stage].whole:
                return

    def _is_told(self, stage: str) -> bool:
        """Whether a part explains a stage, or a failing cache that it reads."""
        parts = [self.parts.get(one) for one in (stage, *self._left_in_caches(stage))]
        return any(part is not None and part.whole for part in parts)

    def _left_in_caches(self, stage: str) -> list[str]:
        """The failing caches that a stage of a local run reads, of its own layer: its pass' rows are among theirs."""
        names = self.trials.golden.declared
        if not self.trials.contained or stage not in names:
            return []
        read = (self.left[one] for one in inputs(names[stage], names) if names[one].stage.cache and one in self.left)
        return [residual.stage for residual in read if residual.red and residual.error < inf]

    def _failing(self) -> list[Residual]:
        """What asks for a cause, the first to show first; where that may come of several layers, what comes of one
        before it."""
        failing = [residual for residual in self.left.values() if self._needs_cause(residual)]
        if len(failing) < 2 or not self.trials.contained or len(self._layers_behind(failing[0])) < 2:
            return failing
        within = {*self.trials.segment(failing[0])}
        one = (left for left in failing if self._comes_of_one_layer(left, within))
        first = next(one, failing[0])
        return [first, *(other for other in failing if other is not first)]

    def _comes_of_one_layer(self, left: Residual, within: set[str]) -> bool:
        """Whether what lies hidden behind a failing stage is one layer's, and among these stages."""
        hidden = {*self.trials.segment(left)} - {left.stage}
        inside = left.error < inf and bool(hidden) and hidden <= within
        return inside and len(self._layers_behind(left)) == 1 and not self._comes_of_deduced(left.stage)

    def _layers_behind(self, left: Residual) -> set[int | None]:
        """The layers of what an error of a stage may come of."""
        names = self.trials.golden.declared
        return {names[stage].layer for stage in self.trials.segment(left) if stage in names}

    def _run(self) -> None:
        """What is not computed from an unexplained stage may still have a cause of its own."""
        while (failing := self._failing()) and not self.trials.clock.untried:
            place = failing[0].place
            last = failing[0].misshapen
            if failing[0].error == inf and place is not None and place.round < self.rounds:
                self._cut(place.round)  # another shape cannot be forced: later rounds show other states
            elif last is not None and last <= self.rounds:
                self._cut(last - 1)
            elif len(self.causes) >= CAUSES or len(self.aside) > UNEXPLAINED:
                self.unexplained = self.unexplained or failing[0]
                return
            elif not self._name_cause(failing[0]):
                self.unexplained = self.unexplained or failing[0]
                self.aside.add(failing[0].stage)
                self._cut(self.trials.rounds)

    def _is_aside(self, stage: str) -> bool:
        """Whether a stage is unexplained, or computed from one that is and that could not be forced."""
        names = self.trials.golden.declared
        if stage in self.aside or not self.aside or stage not in names:
            return stage in self.aside
        cache = stage.split(".")[:2]
        if cache[0] == "kv" and any(other.split(".")[:2] == cache for other in self.aside):
            return True  # the rows of one cache share what is wrong with its length
        misshapen = {name for name in self.aside & self.start.keys() if self.start[name].error == inf}
        return bool(self.aside & set(sources(stage, names, self.trials.run.followed - misshapen)))

    def _needs_cause(self, residual: Residual) -> bool:
        """Whether a stage fails, and not as a consequence of the known causes."""
        before = self.start.get(residual.stage, residual)
        if self._is_aside(residual.stage):
            return False
        if not residual.red or (self.known and (before.settled_by(residual) if before.red else residual.settled)):
            return False
        if self._is_the_references(residual):
            return False
        own = any(can_show_in(hypothesis, self.trials.segment(residual)) for hypothesis, _ in self.known)
        return not (own and residual.stage in self.start and before.explained(residual) >= MOST)

    def _is_the_references(self, residual: Residual) -> bool:
        """Whether a stage passes against the golden, and fails against the references without any assumption."""
        before = self.start.get(residual.stage)
        passes = before is not None and not before.red
        return passes and residual.red and self.trials.fails_unassumed(residual.stage, self.rounds)

    def _cut(self, rounds: int) -> None:
        """Judge these rounds only."""
        self.rounds = rounds
        self.start, self.left = self.trials.residuals((), rounds), self.trials.residuals(self.known, rounds)

    def _refitted(self, first: Residual) -> bool:
        """Whether another value of a known cause's parameter explains this stage as well."""
        found = refitted(self.trials, self.known, self.start, first, self.rounds)
        if found is None:
            return False
        self.known, left = found
        self.left = {name: residual for name, residual in left.items() if not self._is_the_references(residual)}
        values = {hypothesis.id: (hypothesis.describe(value), value) for hypothesis, value in self.known}
        remaining = sum(not residual.settled for residual in self.left.values())
        for number, cause in enumerate(self.causes):
            says, value = values[cause.hypothesis]
            self.causes[number] = replace(cause, says=says, value=value, remaining=remaining)
        return True

    def _name_cause(self, first: Residual) -> bool:
        """Find the hypothesis that explains the first failing stage; whether there is one."""
        if self._refitted(first):
            return True
        explained = {cause.stage for cause in self.causes}
        if first.stage not in self.read and {*self._told_of(first.stage)} - explained:
            return False  # no hypothesis explained what is told of the same kind of stage
        self._take_apart(first)
        step = DiagnosisStep(self.trials, self.known, self.rounds, self.left, first)
        part = self.parts.get(first.stage)
        if part is not None and part.whole and self._said_elsewhere(first.stage, part.says):
            return False
        told = self._is_told(first.stage)
        search = HypothesisSearch(self.trials, self.hypotheses, self.known, first, told)
        narrow = partial(self._leaves_alike, step, first)
        confirmed, self.made = search.best(step.confirm, step.doubted, step.spoils, *[narrow] * told)
        trial = confirmed or step.nearest(self.made)
        if trial is None or (part and part.whole and _outdone(part, step, trial, near=confirmed is None)):
            return False
        if part and part.whole and part.explained > step.explained(trial) and self._leaves_alike(step, first, trial):
            return False
        alike = [said_of(other) for other in step.alike]
        self.left, named = step.full(trial).after, step.at_first(trial)
        failing = {name: residual for name, residual in self.left.items() if not self._is_the_references(residual)}
        causes = causes_of(named, first, failing, self.made, step.holds(trial), alike)
        self.causes += [replace(cause, doubted=self._unwritten(first.stage)) for cause in causes]
        self.known = (*self.known, *trial.assumed)
        self._widen(first)
        return True

    def _said_elsewhere(self, stage: str, says: str) -> bool:
        """Whether another stage that no hypothesis explained has the same part, as queries and keys have a rotation."""
        return any(other != stage and other in self.aside and part.says == says for other, part in self.parts.items())

    def _leaves_alike(self, step: DiagnosisStep, first: Residual, trial: Trial) -> bool:
        """Whether what is named leaves a stage of the same kind failing, in another layer."""
        left = step.full(trial).after.values()
        return any(
            one.red and one.stage != first.stage and self._kind(one.stage) == self._kind(first.stage) for one in left
        )

    def _unwritten(self, stage: str) -> str:
        """Why a cause of wrong ids is in doubt: they are what an empty buffer holds; '' where it is not."""
        golden, run = self.trials.cut(self.rounds)
        named = golden.declared.get(stage)
        rows = stage_rows(golden, run, named) if named and named.stage.exact and not golden.keeps else None
        wrong = rows.device[rows.golden != rows.device] if rows is not None else np.ones(1)
        return "" if wrong.any() or not len(wrong) else "every wrong id is 0, as in a buffer that nothing wrote"

    def _widen(self, first: Residual) -> None:
        """Judge all rounds again where the new cause allows it.

        A device whose embedded rows differ in number ran another prompt: it is run anew.
        """
        trials, known = self.trials, self.known
        if first.stage == TARGET_EMBED and first.error == inf and trials.drive is not None:
            self.trials = trials = trials.rerun(known)
            self.rounds = trials.rounds
            self.start = self.left = trials.residuals((), self.rounds)
        elif self.rounds < trials.rounds and (wider := attempt(lambda: trials.residuals(known, trials.rounds))):
            self.rounds, self.start, self.left = trials.rounds, trials.residuals((), trials.rounds), wider


def parts_of(trials: PromptTrials, rounds: int, stage: str) -> tuple[Component, ...]:
    """The part of a stage's computation that is wrong in these rounds; by its rows alone once the time is up."""
    golden, run = trials.cut(rounds)

    def products() -> Sequence[StageProduct]:
        with suppress(TimeIsUp):
            return trials.counterfactuals.products(golden, stage, hidden_before(stage, golden, run))
        return ()

    key = trials.prompt, rounds, stage, trials.hidden
    if key not in trials.parts:
        trials.parts[key] = components(golden, run, stage, products, trials.clock.check, trials.sure_rows(stage))
    return trials.parts[key]


def _outdone(part: Component, step: DiagnosisStep, trial: Trial, near: bool) -> bool:
    """Whether a part that leaves nothing but noise says more than a hypothesis, which may not settle the stage."""
    explained, after = step.explained(trial), step.at_first(trial).after
    numbers = after.x is not None  # choices are wrong or not: a tie that goes the other way is many times the bound
    if near and numbers and part.explained > explained and after.worst > FAR:
        return True
    return explained < CLEARLY * part.explained
