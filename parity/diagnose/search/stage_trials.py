"""Trials of assumptions at one failing stage: what each leaves there of the device's error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from parity.compare.places import sources
from parity.diagnose.attempts import attempt
from parity.diagnose.hypothesis import Assumption, CheckableHypothesis
from parity.diagnose.ranking import Trial, best_of_each, can_show_in
from parity.diagnose.residuals import Residual
from parity.diagnose.trials import PromptTrials, ResidualChange

AHEAD = 3
"""Rounds after the first failing one that show what it does not: what a round leaves in the caches shows in the
next."""

SHARE = 0.05
"""A hypothesis that explains less than this of the error is no candidate for a pair."""

DOUBTED = 5
"""The hypotheses whose best trials of a tier do not settle the stage: these are judged again, by their own floors."""


class StageTrials:
    """Trials at one failing stage of a prompt, on top of what is assumed already.

    Args:
        trials: the prompt to try on.
        hypotheses: all there are.
        known: assumptions already made.
        first: the first failing stage under `known`.

    Attributes:
        round: the last round to try over.
        passes: the passes that alone are wrong, see `PromptTrials.failing_passes`.
        hypotheses: those that can show at this stage.
        asked: trials made so far.
        spoilt: single assumptions that break a prefill that is right.
    """

    def __init__(
        self,
        trials: PromptTrials,
        hypotheses: Sequence[CheckableHypothesis],
        known: tuple[Assumption, ...],
        first: Residual,
    ) -> None:
        self.trials, self.known, self.first = trials, known, first
        self.round = self._round(first.place.round if first.place else 0)
        taken = {hypothesis.id for hypothesis, _ in known}
        self.segment = trials.segment(first)
        self.passes = trials.failing_passes(first)
        self.hypotheses = [
            each
            for each in hypotheses
            if can_show_in(each, self.segment) and each.id not in taken and each.passes in ("", self.passes)
        ]
        self.asked = 0
        self._weighed: dict[tuple[object, ...], ResidualChange] = {}
        self.spoilt: list[tuple[Assumption, ...]] = []

    def _round(self, shown: int) -> int:
        """The round in which it shows, or a later one where the stage does not fail up to there."""
        for round_ in (shown, min(shown + AHEAD, self.trials.rounds)):
            before = attempt(partial(self.trials.before, self.known, round_, self.first.stage))
            if before is None or before.red:
                return round_
        return self.trials.rounds

    @cached_property
    def gap(self) -> np.ndarray | None:
        """A sample of the device's error; None where it has no numbers of the same shapes."""
        return self._gap(self.round)

    @cached_property
    def _later_gap(self) -> np.ndarray | None:
        return self._gap(self._later)

    def _gap(self, rounds: int) -> np.ndarray | None:
        return attempt(partial(self.trials.gap, self.known, rounds, self.first.stage))

    @property
    def _later(self) -> int:
        """The round up to which is judged what the failing one does not determine."""
        return min(self.round + AHEAD, self.trials.rounds)

    def gap_beside(self, moved: np.ndarray) -> np.ndarray | None:
        """The device's error over the rounds in which a trial was judged that moves so much; None where it has none."""
        if self.gap is None or self.gap.shape == moved.shape:
            return self.gap
        later = self._later_gap
        return later if later is not None and later.shape == moved.shape else None

    def left_along(self, direction: np.ndarray | None) -> float:
        """The share of the sampled error that is left where as much as possible of a direction is taken off it."""
        if self.gap is None or direction is None or direction.shape != self.gap.shape:
            return 1.0
        if not direction.any() or not self.gap.any():
            return 1.0
        along = float(self.gap @ direction) ** 2 / float(direction @ direction)
        return 1.0 - along / float(self.gap @ self.gap)

    @cached_property
    def several_layers(self) -> bool:
        """Whether what is computed between this stage and what is given lies in several layers."""
        return any(len(self.layers(hypothesis)) > 1 for hypothesis in self.hypotheses if hypothesis.layered)

    def layers(self, hypothesis: CheckableHypothesis) -> list[int]:
        """The layers in which a hypothesis can show."""
        names = self.trials.golden.declared
        layers = (names[stage].layer for stage in self.segment if stage in names and can_show_in(hypothesis, [stage]))
        return list(dict.fromkeys(layer for layer in layers if layer is not None))

    def values(self, hypothesis: CheckableHypothesis) -> list[Any]:
        """The values to enumerate; the layer in which it can show is one of a layered hypothesis, where it is one."""
        values, layers = list(hypothesis.values), self.layers(hypothesis)
        if hypothesis.layered and len(layers) == 1:
            values += layers
        if hypothesis.infer is not None:
            values.append(self.trials.infer(hypothesis, self.known, self.round))
        alone = hypothesis.fit is None and hypothesis.infer is None
        return list(dict.fromkeys(value for value in values if alone or value is not None))

    def single_layers(self, hypothesis: CheckableHypothesis) -> list[int]:
        """The layers to enumerate behind that, where a layered hypothesis can show in several: they are many."""
        layers = self.layers(hypothesis) if hypothesis.layered else []
        return [layer for layer in layers if layer not in hypothesis.values] if len(layers) > 1 else []

    def each(self, many: Iterable[tuple[Assumption, ...]]) -> Iterator[Trial]:
        """Trials of these assumptions, without those that cannot apply or break a prefill that is right."""
        return (trial for assumed in many if (trial := self.one(assumed)) is not None)

    def one(self, assumed: tuple[Assumption, ...]) -> Trial | None:
        """One trial; None where the assumptions cannot apply, or break a prefill that is right.

        Over some rounds more where those up to the failing one do not determine what it changes.
        """
        self.asked += 1
        says = " and ".join(hypothesis.describe(value) for hypothesis, value in assumed)
        self.trials.clock.progress(self.asked, self.asked, f"{self.first.stage}: {says}?")
        if self._breaks_prefill(assumed):
            return None
        return attempt(
            lambda: self._weigh(assumed, self.round), lambda: attempt(lambda: self._weigh(assumed, self._later))
        )

    def unchecked(self, assumed: tuple[Assumption, ...]) -> Trial | None:
        """A trial, whatever it does to the prefill."""
        self.asked += 1
        return attempt(partial(self._weigh, assumed, self.round))

    def judge_doubted(self, made: list[Trial]) -> None:
        """Judge the best unsettled trial of each of the best hypotheses by its own floor; it takes the old one's
        place."""
        again = []
        doubted = best_of_each(trial for trial in made if not trial.doubted and trial.explained > SHARE)[:DOUBTED]
        for trial in doubted:
            if not trial.settles:
                other = attempt(partial(self._weigh, trial.assumed, self.round, own_floor=True))
                made.remove(trial)
                again.append(other or replace(trial, doubted=True))
        made += again

    def _breaks_prefill(self, assumed: tuple[Assumption, ...]) -> bool:
        """Whether the prefill, where only later passes fail, fails with these: told without a run of those passes."""
        stage = self.first.stage
        if self.passes != "verify" or not self.trials.prefilled(stage):
            return False
        here = self._here(assumed)
        change = attempt(partial(self.trials.weigh, self.known, here, 0, [stage], last=stage))
        broken = change is not None and change.after[stage].red and not change.before[stage].red
        self.spoilt += [assumed] if broken and len(assumed) == 1 and not assumed[0][0].passes else []
        return broken

    def _weigh(self, assumed: tuple[Assumption, ...], rounds: int, own_floor: bool = False) -> Trial:
        stage, here = self.first.stage, self._here(assumed)
        key = tuple((hypothesis.id, value) for hypothesis, value in here), rounds, own_floor
        if key not in self._weighed:
            self._weighed[key] = self.trials.weigh(self.known, here, rounds, [stage], last=stage, own_floor=own_floor)
        change = self._weighed[key]
        return Trial(assumed, change.before[stage], change.after[stage], own_floor, change.sample)

    def _here(self, assumed: tuple[Assumption, ...]) -> tuple[Assumption, ...]:
        """What assumptions are at this stage: where its layer starts from the golden's rows, a hypothesis of all
        layers is one of that layer, and the others need not be computed."""
        if self._own_layer is None:
            return assumed
        return tuple((one, self._own_layer if one.layered and value == "all" else value) for one, value in assumed)

    @cached_property
    def _own_layer(self) -> int | None:
        """The layer that the stage alone is computed from, as far as the golden's values are not put in its place."""
        names, run = self.trials.golden.declared, self.trials.run
        if not self.trials.contained or self.first.stage not in names:
            return None
        rounds = range(min(self.round + AHEAD, self.trials.rounds) + 1)
        given = {name for name in run.followed if all(run.follows(round_, name) for round_ in rounds)}
        behind = [self.first.stage, *sources(self.first.stage, names, given)]
        layers = {names[stage].layer for stage in behind if stage in names} - {None}
        sides = {stage.split(".")[0] for stage in behind if stage in names and names[stage].layer is not None} - {"kv"}
        return layers.pop() if len(layers) == 1 and len(sides) == 1 else None
