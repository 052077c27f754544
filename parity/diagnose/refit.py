"""A parameter that was fitted where a cause shows first, fitted anew over the stages that it should explain.

A threshold (a margin, a capacity) explains the rows of one stage at many values; those of another narrow them down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import exp, inf, log

from parity.diagnose.counterfactual_runs import Assumption, CheckableHypothesis
from parity.diagnose.residuals import Residual
from parity.diagnose.search import GRID, STEPS, can_show_in, golden_section
from parity.diagnose.trials import PromptTrials, attempt


def refitted(
    trials: PromptTrials, known: Sequence[Assumption], start: dict[str, Residual], first: Residual, rounds: int
) -> tuple[tuple[Assumption, ...], dict[str, Residual]] | None:
    """The known causes with another value of one of them, and what they leave; None where none settles `first`.

    Args:
        known: the causes named so far, as they were fitted.
        start: residuals without any, by stage.
        first: the stage that fails under them.
        rounds: how many of the prompt's rounds are judged.
    """
    for number, (hypothesis, value) in enumerate(known):
        if hypothesis.fit is None or not isinstance(value, int | float):
            continue
        wrong = [name for name, each in start.items() if each.red and can_show_in(hypothesis, trials.segment(name))]
        others = (*known[:number], *known[number + 1 :])
        if first.stage not in wrong or len(wrong) < 2:
            continue
        other = _fitted(hypothesis, value, partial(_left, trials, others, wrong, rounds))
        again = (*known[:number], (hypothesis, other), *known[number + 1 :])
        left = attempt(partial(trials.residuals, again, rounds))
        before = [name for name in wrong[: wrong.index(first.stage) + 1] if name in start]
        if left is not None and all(name in left and start[name].settled_by(left[name]) for name in before):
            return again, left
    return None


def _left(
    trials: PromptTrials,
    others: Sequence[Assumption],
    stages: Sequence[str],
    rounds: int,
    assumed: Assumption,
) -> float:
    """The shares of their errors that the stages keep, added up."""
    change = attempt(partial(trials.weigh, others, [assumed], rounds, stages))
    if change is None:
        return inf
    return sum(change.before[name].share(change.after[name]) for name in stages if name in change.after)


def _fitted(hypothesis: CheckableHypothesis, value: float, left: Callable[[Assumption], float]) -> float:
    """The value that leaves least, within a step of the first scan from what it was."""
    fit = hypothesis.fit
    if fit is None:
        return value
    made: dict[float, float] = {}
    low, high, middle = (log(end) if fit.log else float(end) for end in (fit.low, fit.high, value))

    def value_at(x: float) -> float:
        return round(exp(x) if fit.log else x) if fit.whole else exp(x) if fit.log else float(x)

    def error(x: float) -> float:
        at = value_at(x)
        if at not in made:
            made[at] = left((hypothesis, at))
        return made[at]

    step = (high - low) / (GRID - 1)
    points = [min(max(middle + step * (2 * i / (GRID - 1) - 1), low), high) for i in range(GRID)]
    best = min(range(GRID), key=lambda i: error(points[i]))
    golden_section(error, points[max(best - 1, 0)], points[min(best + 1, GRID - 1)], STEPS)
    return min(made, key=made.__getitem__)
