"""Which hypothesis explains the first red stage: enumerate, fit, pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from typing import Any

from parity.diagnose.explain import Residual
from parity.diagnose.trials import Assumption, PromptTrials, attempt
from parity.stages import matches

AHEAD = 3
"""Rounds behind the first red one that tell what it does not: what a round leaves in the caches shows in the next."""

SHARE = 0.05
"""A hypothesis that explains less than this of the error is no candidate for a pair."""

DOUBTED = 5
"""The best trials of a tier that do not settle the stage are judged once more, by floors of their own."""

LEADERS = 2
"""The hypotheses that explain most alone; each is tried with every other one, which may show only beside it."""

GRID, STEPS = 9, 14
"""Points of the first scan of a parameter, and golden-section steps behind it: an interval of GRID shrinks
to 2 / 8 * 0.618^14, 0.03 % of itself."""


@dataclass(frozen=True)
class Trial:
    """One set of assumptions, and the first red stage without it and with it, over the same rounds and rows."""

    assumed: tuple[Assumption, ...]
    before: Residual
    after: Residual
    doubted: bool = False

    @property
    def settles(self) -> bool:
        """Whether the stage was red, and is back at its floor by them."""
        return self.before.red and self.before.settled_by(self.after) and self.before.fell_to(self.after)

    @property
    def left(self) -> float:
        """What it leaves, as a share of the error."""
        return self.before.share(self.after)

    @property
    def explained(self) -> float:
        """Share of the squared error that is gone."""
        return self.before.explained(self.after)


class HypothesisSearch:
    """The search for what explains one red stage, on top of what is assumed already.

    Args:
        trials: the prompt to try on.
        hypotheses: all there are.
        known: assumptions already made.
        first: the first red stage under `known`.
    """

    def __init__(self, trials: PromptTrials, hypotheses: Sequence[Any], known: tuple[Assumption, ...], first: Residual):
        self.trials, self.known, self.first = trials, known, first
        self.round = self._round(first.place.round if first.place else 0)
        taken = {hypothesis.id for hypothesis, _ in known}
        self.hypotheses = [one for one in hypotheses if can_show_at(one, first.stage) and one.id not in taken]

    def _round(self, shown: int) -> int:
        """The last round to try over: the one in which it shows, or later where the stage is not red up to there."""
        for round_ in (shown, min(shown + AHEAD, self.trials.rounds)):
            before = attempt(lambda round_=round_: self.trials.before(self.known, round_, self.first.stage))
            if before is None or before.red:
                return round_
        return self.trials.rounds

    def alone(self) -> list[Trial]:
        """Every hypothesis by itself, the best first: for a stage that is within its bounds on this prompt alone."""
        return ranked_trials(
            trial for tier in (self._enumerated(), self._fitted()) for trials in tier for trial in trials
        )

    def best(self, confirm: Callable[[Sequence[Trial]], Trial | None]) -> tuple[Trial | None, list[Trial]]:
        """The trial that brings the stage back to its floor, or None; and every trial made, the best first.

        Cheap hypotheses come first; a tier is tried whole, so that the better of two wins. `confirm` picks
        among the trials that satisfy the stage the one that does not break others.
        """
        made: list[Trial] = []
        for tier in (self._enumerated(), self._fitted(), self._pairs(made)):
            for trials in tier:
                made += trials
                made += self._doubted(made)
                found = confirm(ranked_trials(trial for trial in made if trial.settles))
                if found:
                    return found, ranked_trials(made)
        return None, ranked_trials(made)

    def _enumerated(self) -> Iterator[list[Trial]]:
        """Discrete values, one tier for each cost."""
        for cost in sorted({one.cost for one in self.hypotheses}):
            tier = [one for one in self.hypotheses if one.cost == cost]
            yield self._tried(((one, value),) for one in tier for value in self.values(one))

    def values(self, hypothesis: Any) -> list[Any]:
        """The values to enumerate; the layer of the red stage is one of a layered hypothesis."""
        values = list(hypothesis.values)
        if hypothesis.layered and self.first.place is not None and self.first.place.layer is not None:
            values.append(self.first.place.layer)
        if hypothesis.infer is not None:
            values.append(self.trials.infer(hypothesis, self.known, self.round))
        alone = hypothesis.fit is None and hypothesis.infer is None
        return list(dict.fromkeys(value for value in values if alone or value is not None))

    def _fitted(self) -> Iterator[list[Trial]]:
        """Continuous parameters: a scan, then golden section."""
        fits = [one for one in self.hypotheses if one.fit is not None]
        yield [trial for one in fits for trial in self._fit(one)]

    def _fit(self, hypothesis: Any, beside: tuple[Assumption, ...] = ()) -> list[Trial]:
        """The best value of one parameter, `beside` what else is assumed."""
        fit, made = hypothesis.fit, {}
        to, free = (log, exp) if fit.log else (float, float)
        back = (lambda x: round(free(x))) if fit.whole else free

        def error(x: float) -> float:
            value = back(x)
            if value not in made:
                made[value] = self._try((*beside, (hypothesis, value)))
            return made[value].left if made[value] else inf

        low, high = to(fit.low), to(fit.high)
        grid = [low + (high - low) * i / (GRID - 1) for i in range(GRID)]
        best = min(range(GRID), key=lambda i: error(grid[i]))
        if error(grid[best]) < (1.0 if self.first.error < inf else inf):
            golden_section(error, grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)], STEPS)
        return ranked_trials(trial for trial in made.values() if trial)[:1]

    def _pairs(self, made: list[Trial]) -> Iterator[list[Trial]]:
        """The leaders with every other hypothesis, then the best pairs with what can be fitted of them."""
        alone = [trial for trial in ranked_trials(made) if len(trial.assumed) == 1]
        for leader in best_of_each(trial for trial in alone if trial.explained > SHARE)[:LEADERS]:
            others = [one for one in alone if one.assumed[0][0] is not leader.assumed[0][0]]
            pairs = self._tried((leader.assumed[0], one.assumed[0]) for one in others)
            yield pairs
            better = [pair for pair in ranked_trials(pairs) if pair.left < leader.left][:LEADERS]
            fits = (
                (kept, moved) for pair in better for kept, (moved, _) in (pair.assumed, pair.assumed[::-1]) if moved.fit
            )
            yield [trial for kept, moved in fits for trial in self._fit(moved, (kept,))]

    def _tried(self, many: Iterable[tuple[Assumption, ...]]) -> list[Trial]:
        found = (self._try(assumed) for assumed in many)
        return [trial for trial in found if trial is not None]

    def _try(self, assumed: tuple[Assumption, ...]) -> Trial | None:
        later = min(self.round + AHEAD, self.trials.rounds)
        found = attempt(lambda: self._weigh(assumed, self.round), lambda: attempt(lambda: self._weigh(assumed, later)))
        return found and Trial(assumed, *found)

    def _weigh(
        self, assumed: tuple[Assumption, ...], rounds: int, own_floor: bool = False
    ) -> tuple[Residual, Residual]:
        stage = self.first.stage
        found = self.trials.weigh(self.known, assumed, rounds, [stage], last=stage, own_floor=own_floor)
        return found.before[stage], found.after[stage]

    def _doubted(self, made: list[Trial]) -> list[Trial]:
        """The best unsettled trials, by floors of their own; they take the old ones' place."""
        again = []
        for trial in [one for one in ranked_trials(made) if not one.doubted and one.explained > SHARE][:DOUBTED]:
            if trial.settles:
                continue
            found = attempt(lambda: self._weigh(trial.assumed, self.round, own_floor=True))
            made.remove(trial)
            before, after = found or (trial.before, trial.after)
            again.append(replace(trial, before=before, after=after, doubted=True))
        return again


def can_show_at(hypothesis: Any, stage: str) -> bool:
    """Whether a hypothesis can show first at this stage."""
    return any(matches(glob, stage) for glob in hypothesis.stages)


def best_of_each(trials: Iterable[Trial]) -> list[Trial]:
    """The best trial of every hypothesis, the best first."""
    found: dict[str, Trial] = {}
    for trial in ranked_trials(trials):
        found.setdefault(trial.assumed[0][0].id, trial)
    return list(found.values())


def ranked_trials(trials: Iterable[Trial]) -> list[Trial]:
    """The least residual first; among equals fewer assumptions, then the cheaper, then what was met in public."""
    return sorted(trials, key=trial_order)


def trial_order(trial: Trial) -> tuple:
    """What trials are ranked by."""
    hypotheses = [hypothesis for hypothesis, _ in trial.assumed]
    error = float(f"{trial.left:.2e}")  # what differs behind the third digit is alike
    return error, len(hypotheses), sum(one.cost for one in hypotheses), not all(one.seen for one in hypotheses)


def golden_section(error: Callable[[float], float], low: float, high: float, steps: int) -> None:
    """Narrow a minimum down; `error` keeps what it has seen."""
    ratio = (5**0.5 - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    for _ in range(steps):
        if error(a) < error(b):
            high, b, a = b, a, b - ratio * (b - low)
        else:
            low, a, b = a, b, a + ratio * (high - a)
