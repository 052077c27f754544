"""Which hypothesis explains the first failing stage: enumerate, fit, pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from math import inf
from typing import Any

import numpy as np

from parity.diagnose.clock import SHORT, TRYING, TimeIsUp
from parity.diagnose.conditional import RowEvidence, joined_evidence, only
from parity.diagnose.fitting import (
    STEPS,
    VERTICES,
    Curve,
    beside_clean,
    clean_value,
    constant,
    golden_section,
    parabolas,
)
from parity.diagnose.hypothesis import Assumption, CheckableHypothesis
from parity.diagnose.ranking import Trial, best_of_each, can_show_in, ranked_trials, trial_order
from parity.diagnose.residuals import Residual, red_rows
from parity.diagnose.trials import PromptTrials, attempt

AHEAD = 3
"""Rounds after the first failing one that show what it does not: what a round leaves in the caches shows in the
next."""

SHARE = 0.05
"""A hypothesis that explains less than this of the error is no candidate for a pair."""

DOUBTED = 5
"""The hypotheses whose best trials of a tier do not settle the stage: these are judged again, by their own floors."""

LEADERS = 2
"""The hypotheses that explain most alone; each is tried with others."""

WEIGHED, SIZED = 2, 3
"""The parts of a layer of which each weight is asked for, and those whose size is worked out: what explains most."""

STILL = 1e-3
"""The share of what is left that a change of size takes off, where it is not worth another trial."""

STEPS_OF_SIZE = 5
"""Corrections of a size: what a part adds to a later stage is nearly, not wholly, in proportion to its size."""

BESIDE = 32
"""The hypotheses with which a leader is tried: those that leave least if both do together what they do apart."""


PART = 0.5
"""What explains some rows leaves less than this of the error in these, and does not move others' that much."""

SOME = 0.8
"""A parameter that is fitted to some rows leaves less than this of the error at a point of its scan: where each element
is taken with a value or without it, something less is left whatever the value."""

CANDIDATES, OTHERS, WORDINGS = 12, 2, 2
"""The assumptions for which a condition is looked for, the other prompts that narrow it down, and the conditions of
each that are tried."""


class HypothesisSearch:
    """The search for what explains one failing stage, on top of what is assumed already.

    Args:
        trials: the prompt to try on.
        hypotheses: all there are.
        known: assumptions already made.
        first: the first failing stage under `known`.
        short: whether the part of the computation that is wrong is known already: a catalogue entry would only give it
            a name, so that pairs and parameters under a condition are not tried, and less time is taken.
    """

    def __init__(
        self,
        trials: PromptTrials,
        hypotheses: Sequence[CheckableHypothesis],
        known: tuple[Assumption, ...],
        first: Residual,
        short: bool = False,
    ):
        self.trials, self.known, self.first, self.short = trials, known, first, short
        self.round = self._round(first.place.round if first.place else 0)
        taken = {hypothesis.id for hypothesis, _ in known}
        self.segment = trials.segment(first.stage)
        self.passes = trials.failing_passes(first)
        self.hypotheses = [
            each
            for each in hypotheses
            if can_show_in(each, self.segment) and each.id not in taken and each.passes in ("", self.passes)
        ]
        self.asked = 0
        self.ended = False
        self.spoilt: list[tuple[Assumption, ...]] = []

    def _round(self, shown: int) -> int:
        """The last round to try over: the one in which it shows, or later where the stage does not fail up to there."""
        for round_ in (shown, min(shown + AHEAD, self.trials.rounds)):
            before = attempt(partial(self.trials.before, self.known, round_, self.first.stage))
            if before is None or before.red:
                return round_
        return self.trials.rounds

    def each_alone(self) -> list[Trial]:
        """Every hypothesis alone, the best first: for a stage that is within its bounds on this prompt."""
        made: list[Trial] = []
        try:
            with self.trials.clock.trying():
                for trials in (*self._enumerated(), *self._fitted()):
                    made += trials
        except TimeIsUp:
            self._cut_short("alone")
        return ranked_trials(made)

    def best(self, confirm: Callable[[Sequence[Trial]], Trial | None]) -> tuple[Trial | None, list[Trial]]:
        """The trial that brings the stage back to its floor, or None; and every trial made, the best first.

        Cheap hypotheses come first; a tier is tried whole, so that the better of two wins. `confirm` picks
        among the trials that settle the stage the one that does not break others. Where the time is up, it picks
        among those made so far.
        """
        made: list[Trial] = []
        left = self._tiers(made)
        while left:
            what, tiers = left.pop(0)
            for tier in tiers:
                self._try_all(tier, made, what, [name for name, _ in left])
                confirmed = confirm(ranked_trials(trial for trial in made if trial.settles))
                if confirmed or self.ended or self.trials.clock.untried:
                    return confirmed, ranked_trials(made)
        return None, ranked_trials(made)

    def _tiers(self, made: list[Trial]) -> list[tuple[str, Iterator[Iterator[Trial]]]]:
        """What is tried, in order, each in its tiers; where some passes are right, conditions go before parameters."""
        middle = [
            ("with a fitted parameter", self._fitted()),
            ("under a condition", self._conditional(made)),
        ]
        last = [
            ("with a parameter under a condition", self._fitted_in_part()),
            ("in pairs", self._pairs(made)),
        ]
        return [
            ("of single parts", iter([self._parts()])),
            ("alone", self._enumerated()),
            *(middle[::-1] if self.passes else middle),
            *([] if self.short else last),
        ]

    def _try_all(self, tier: Iterable[Trial], made: list[Trial], what: str, rest: Sequence[str]) -> None:
        """Add a tier's trials to those made."""
        try:
            with self.trials.clock.trying(SHORT if self.short else TRYING):
                for trial in tier:
                    made.append(trial)
                made += self._doubted(made)
        except TimeIsUp:
            self.ended = True
            if not self.short:
                self._cut_short(what, rest)

    def _cut_short(self, what: str, rest: Sequence[str] = ()) -> None:
        """Say what the limit leaves out."""
        left = f"not all hypotheses {what}" + (f", and none {', '.join(rest)}," if rest else "")
        self.trials.clock.untried.append(f"{self.first.stage}: {left} were tried ({self.asked} trials were made)")

    def _enumerated(self) -> Iterator[Iterator[Trial]]:
        """Discrete values, one tier for each cost; what a right prefill speaks against comes last."""
        for cost in sorted(set(map(self._cost, self.hypotheses))):
            tier = [hypothesis for hypothesis in self.hypotheses if self._cost(hypothesis) == cost]
            yield self._tried(((hypothesis, value),) for hypothesis in tier for value in self.values(hypothesis))

    def _cost(self, hypothesis: CheckableHypothesis) -> float:
        """What shows in every pass can hardly be the cause where the prefill is right."""
        return inf if self.passes == "verify" and hypothesis.cost == 1 else hypothesis.cost

    def values(self, hypothesis: CheckableHypothesis) -> list[Any]:
        """The values to enumerate; the layers in which it can show are those of a layered hypothesis."""
        values = list(hypothesis.values)
        if hypothesis.layered:
            values += self._layers(hypothesis)
        if hypothesis.infer is not None:
            values.append(self.trials.infer(hypothesis, self.known, self.round))
        alone = hypothesis.fit is None and hypothesis.infer is None
        return list(dict.fromkeys(value for value in values if alone or value is not None))

    def _layers(self, hypothesis: CheckableHypothesis) -> list[int]:
        """The layers in which it can show."""
        names = self.trials.golden.declared
        layers = (names[stage].layer for stage in self.segment if stage in names and can_show_in(hypothesis, [stage]))
        return list(dict.fromkeys(layer for layer in layers if layer is not None))

    def _parts(self) -> Iterator[Trial]:
        """A head, group or expert of a layer, then a weight of those that explain most: each missing; and of another
        size, what promises most."""
        missing: dict[Assumption, np.ndarray] = {}
        gap = attempt(partial(self.trials.gap, self.known, self.round, self.first.stage))
        if gap is None:
            return
        for hypothesis in sorted((each for each in self.hypotheses if each.part), key=lambda each: each.cost):
            for place in self._places(hypothesis, sorted(missing, key=lambda each: _left_along(gap, missing[each]))):
                trial = self._try(((hypothesis, hypothesis.sized(*place, 0.0)),))
                if trial is None:
                    continue
                yield trial
                if trial.moved is not None and trial.moved.shape == gap.shape and trial.moved.any():
                    missing[trial.assumed[0]] = trial.moved
        for assumption in sorted(missing, key=lambda each: _left_along(gap, missing[each]))[:SIZED]:
            yield from self._of_its_size(assumption, gap, missing[assumption])

    def _places(self, hypothesis: CheckableHypothesis, ranked: Sequence[Assumption]) -> list[tuple[int, int]]:
        """Layer and number of each of the parts that it is about; of a weight, of the parts that explain most whole."""
        if hypothesis.cost > 1:
            whole = [value[:2] for other, value in ranked if other.part == hypothesis.part and other.cost == 1]
            return list(dict.fromkeys(whole))[:WEIGHED]
        count = constant(hypothesis.part, self.trials.golden.manifest.model)
        return [(layer, number) for layer in self._layers(hypothesis) for number in range(count or 0)]

    def _of_its_size(self, assumption: Assumption, gap: np.ndarray, missing: np.ndarray) -> Iterator[Trial]:
        """The size at which a part explains most: a straight line through the last two sizes, a few times over."""
        hypothesis, (layer, number, _) = assumption
        sizes, moves = [1.0, 0.0], [np.zeros_like(gap), missing]
        for _ in range(STEPS_OF_SIZE):
            along, left = (moves[-1] - moves[-2]) / (sizes[-1] - sizes[-2]), gap - moves[-1]
            gain = float(left @ along) / float(along @ along)
            if gain**2 * float(along @ along) <= STILL * float(left @ left):
                return
            trial = self._try(((hypothesis, hypothesis.sized(layer, number, sizes[-1] + gain)),))
            if trial is None or trial.moved is None or trial.moved.shape != gap.shape:
                return
            yield trial
            sizes.append(sizes[-1] + gain)
            moves.append(trial.moved)

    def _fitted(self) -> Iterator[Iterator[Trial]]:
        """Continuous parameters: a scan, then golden section."""
        fitted = [hypothesis for hypothesis in self.hypotheses if hypothesis.fit is not None]
        yield (trial for hypothesis in fitted for trial in self._fit(hypothesis))

    def _fit(
        self,
        hypothesis: CheckableHypothesis,
        beside: tuple[Assumption, ...] = (),
        weigh: Callable[[tuple[Assumption, ...]], Trial | None] | None = None,
        measure: Callable[[Trial], float] = lambda trial: trial.left,
        most: float = 1.0,
    ) -> list[Trial]:
        """The best value of one parameter; none where nothing is fitted.

        Args:
            beside: what else is assumed.
            weigh: makes a trial, `_try` by default.
            measure: what a trial leaves.
            most: what a point of the scan has to leave less than.
        """
        fit, weigh = hypothesis.fit, weigh or self._try
        if fit is None:
            return []
        made: dict[float, Trial | None] = {}

        def left(value: float) -> float:
            trial = made[value] = weigh((*beside, (hypothesis, value)))
            return measure(trial) if trial else inf

        error = Curve(fit, left)
        ends = error.scan(error.low, error.high)
        if error.least < (most if self.first.error < inf else inf):
            golden_section(error, *ends, STEPS)
            if not fit.whole:
                parabolas(error, *ends, error.seen, VERTICES)
        elif not fit.whole and self.first.error < inf:
            clean = clean_value(fit, self.trials.golden.manifest.model)
            if clean is not None:
                beside_clean(error, error.at(clean), error.low, error.high)
        return sorted(
            (trial for trial in made.values() if trial), key=lambda trial: (measure(trial), trial_order(trial))
        )[:1]

    def _pairs(self, made: list[Trial]) -> Iterator[Iterator[Trial]]:
        """The leaders with the hypotheses that go best with them, then the best pairs with what can be fitted of
        them."""
        alone = [trial for trial in ranked_trials(made) if len(trial.assumed) == 1]
        for leader in best_of_each(trial for trial in alone if trial.explained > SHARE)[:LEADERS]:
            yield self._tried((leader.assumed[0], other.assumed[0]) for other in self._beside(leader, alone))
            pairs = (trial for trial in made if len(trial.assumed) == 2 and trial.assumed[0] == leader.assumed[0])
            better = [pair for pair in ranked_trials(pairs) if pair.left < leader.left][:LEADERS]
            yield (
                trial
                for pair in better
                for kept, (fitted, _) in (pair.assumed, pair.assumed[::-1])
                for trial in self._fit(fitted, (kept,))
            )

    def _beside(self, leader: Trial, alone: Sequence[Trial]) -> list[Trial]:
        """The trials to make together with a leader: those that leave least, if both do what they do apart."""
        gap = attempt(partial(self.trials.gap, self.known, self.round, self.first.stage))
        others = [trial for trial in alone if trial.assumed[0][0] is not leader.assumed[0][0]]

        def left(other: Trial) -> float:
            parts = [part for part in (gap, leader.moved, other.moved) if part is not None]
            if len(parts) < 3 or len({part.shape for part in parts}) > 1:
                return inf
            return float(np.linalg.norm(parts[0] - parts[1] - parts[2]))

        return sorted(others, key=left)[:BESIDE]

    def _conditional(self, made: Sequence[Trial]) -> Iterator[Iterator[Trial]]:
        """What explains the wrong rows and spoils others, for the rows of the condition that tells the two apart.

        Where errors stay in their rows alone: in a chained comparison they travel.
        """
        if not self.trials.contained:
            return
        if self._any_row_clean():
            yield self._where_told(self._spoiling(made, self._left_in_part))
        else:
            whole = [trial for trial in made if trial.settles and len(trial.assumed) == 1]
            yield self._where_told([trial.assumed[0] for trial in ranked_trials(whole)][:CANDIDATES])

    def _fitted_in_part(self) -> Iterator[Iterator[Trial]]:
        """The same with parameters that are fitted to some of the rows."""
        if self.trials.contained and self._gap is not None and self._any_row_clean():
            found = (
                trial
                for hypothesis in self.hypotheses
                if hypothesis.fit
                for trial in self._fit(hypothesis, (), self._unchecked, self._left_in_part, SOME)
            )
            yield self._where_told(each for trial in found for each in self._in_part([trial], self._left_in_part))

    @cached_property
    def _gap(self) -> np.ndarray | None:
        """A sample of the device's error."""
        return attempt(partial(self.trials.gap, self.known, self.round, self.first.stage))

    @cached_property
    def _others(self) -> list[PromptTrials]:
        """Other prompts, run once they are needed."""
        return [*islice(self.trials.other_prompts(), OTHERS)]

    def _left_in_part(self, trial: Trial) -> float:
        """The share of the error that is left where each element is taken with a trial's assumptions or without them.

        What has no numbers of the same shapes is not told from what leaves nothing.
        """
        gap, moved = self._gap, trial.moved
        if gap is None or moved is None or moved.shape != gap.shape:
            return 0.0 if gap is None and trial.after.error < inf else inf
        return float(np.linalg.norm(np.minimum(abs(gap), abs(gap - moved))) / np.linalg.norm(gap))

    def _any_row_clean(self) -> bool:
        """Whether the failing stage has rows that are right; where it has none, only a layer can be the condition.

        Where no single row is beyond its bound, all of them are off a little.
        """
        wrong = red_rows(*self.trials.cut(self.trials.rounds), self.first.stage)
        return not wrong or (any(wrong.values()) and not all(wrong.values()))

    def _spoiling(self, made: Sequence[Trial], left: Callable[[Trial], float]) -> Iterator[Assumption]:
        """The assumptions made, and those that broke the prefill, under which some rows are explained.

        What was tried for such passes alone is not tried for all of them as well.
        """
        apart = [hypothesis.id for hypothesis in self.hypotheses if hypothesis.passes]
        again = [one for one in self.spoilt if not any(id.startswith(f"{one[0][0].id}-in-") for id in apart)]
        spoilt = [trial for assumed in again if (trial := self._unchecked(assumed))]
        yield from self._in_part([*(trial for trial in made if len(trial.assumed) == 1), *spoilt], left)

    def _in_part(self, alone: Sequence[Trial], left: Callable[[Trial], float]) -> list[Assumption]:
        """The assumptions that leave least where each row is taken with or without them, the best first."""
        ranked = sorted(alone, key=lambda trial: (left(trial), trial_order(trial)))
        return [trial.assumed[0] for trial in ranked if left(trial) <= PART][:CANDIDATES]

    def _unchecked(self, assumed: tuple[Assumption, ...]) -> Trial | None:
        """A trial, whatever it does to the prefill."""
        self.asked += 1
        return attempt(partial(self._weigh, assumed, self.round))

    def _where_told(self, assumptions: Iterable[Assumption]) -> Iterator[Trial]:
        """Each for the rows of the simplest conditions that tell what it explains from what it spoils."""
        for hypothesis, value in assumptions:
            told = self._evidence(self.trials, (hypothesis, value))
            if told is None or next(told.conditions(), None) is None:
                continue
            parts = [part for other in self._others if (part := self._evidence(other, (hypothesis, value)))]
            conditions = [*islice(joined_evidence([told, *parts]).conditions(), WORDINGS)]
            for where, believed in conditions or islice(told.conditions(), WORDINGS):
                yield from self._tried([((only(hypothesis, where, believed), value),)])

    def _evidence(self, trials: PromptTrials, assumption: Assumption) -> RowEvidence | None:
        """Which rows of the failing stage, in every layer of a prompt, a further assumption explains and spoils."""
        return attempt(partial(trials.evidence, self.known, (assumption,), trials.siblings(self.first.stage)))

    def _tried(self, many: Iterable[tuple[Assumption, ...]]) -> Iterator[Trial]:
        return (trial for assumed in many if (trial := self._try(assumed)) is not None)

    def _try(self, assumed: tuple[Assumption, ...]) -> Trial | None:
        self.asked += 1
        says = " and ".join(hypothesis.describe(value) for hypothesis, value in assumed)
        self.trials.clock.progress(self.asked, self.asked, f"{self.first.stage}: {says}?")
        if self._breaks_prefill(assumed):
            return None
        later = min(self.round + AHEAD, self.trials.rounds)
        return attempt(lambda: self._weigh(assumed, self.round), lambda: attempt(lambda: self._weigh(assumed, later)))

    def _breaks_prefill(self, assumed: tuple[Assumption, ...]) -> bool:
        """Whether the prefill, where only later passes fail, fails with these: told without a run of those passes."""
        if self.passes != "verify":
            return False
        stage = self.first.stage
        change = attempt(partial(self.trials.weigh, self.known, assumed, 0, [stage], last=stage))
        broken = change is not None and change.after[stage].red and not change.before[stage].red
        self.spoilt += [assumed] if broken and len(assumed) == 1 and not assumed[0][0].passes else []
        return broken

    def _weigh(self, assumed: tuple[Assumption, ...], rounds: int, own_floor: bool = False) -> Trial:
        stage = self.first.stage
        change = self.trials.weigh(self.known, assumed, rounds, [stage], last=stage, own_floor=own_floor)
        return Trial(assumed, change.before[stage], change.after[stage], own_floor, change.moved)

    def _doubted(self, made: list[Trial]) -> list[Trial]:
        """The best unsettled trial of each of the best hypotheses, by its own floor; it takes the old one's place."""
        again = []
        doubted = best_of_each(trial for trial in made if not trial.doubted and trial.explained > SHARE)[:DOUBTED]
        for trial in doubted:
            if not trial.settles:
                other = attempt(partial(self._weigh, trial.assumed, self.round, own_floor=True))
                made.remove(trial)
                again.append(other or replace(trial, doubted=True))
        return again


def _left_along(gap: np.ndarray, direction: np.ndarray) -> float:
    """What is left of an error where as much as possible of one direction is taken off it."""
    return float(gap @ gap - (gap @ direction) ** 2 / (direction @ direction))
