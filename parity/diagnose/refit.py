"""The value of a cause, found where it shows first, found anew over the stages that it should explain.

A threshold (a margin, a capacity) explains the rows of one stage at many values; those of another narrow them down.
What is wrong in one layer may be wrong in others too: those are the layers that fail, and pass with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from parity.diagnose.attempts import attempt
from parity.diagnose.fitting import GRID, STEPS, Curve, golden_section
from parity.diagnose.hypothesis import Assumption, CheckableHypothesis
from parity.diagnose.ranking import can_show_in
from parity.diagnose.residuals import Residual
from parity.diagnose.trials import PromptTrials


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
        wrong = [name for name, each in start.items() if each.red and can_show_in(hypothesis, trials.segment(each))]
        others = (*known[:number], *known[number + 1 :])
        other: float | tuple[int, ...]
        if first.stage not in wrong or len(wrong) < 2:
            continue
        if hypothesis.layered and isinstance(value, int | tuple):
            other, wrong = _layers(trials, others, hypothesis, value, wrong, rounds)
        elif hypothesis.fit is not None and isinstance(value, int | float):
            other = _fitted(hypothesis, value, partial(_left, trials, others, wrong, rounds))
        else:
            continue
        again = (*known[:number], (hypothesis, other), *known[number + 1 :])
        left = attempt(partial(trials.residuals, again, rounds)) if first.stage in wrong else None
        before = wrong[: wrong.index(first.stage) + 1] if left is not None else []
        if left is not None and all(name in left and start[name].settled_by(left[name]) for name in before):
            return again, left
    return None


def _layers(
    trials: PromptTrials,
    others: Sequence[Assumption],
    hypothesis: CheckableHypothesis,
    value: int | tuple[int, ...],
    wrong: Sequence[str],
    rounds: int,
) -> tuple[tuple[int, ...], list[str]]:
    """The layers of these stages that a hypothesis brings back to their floors, with its own, and their stages."""
    names = trials.golden.declared
    layers = {name: names[name].layer for name in wrong if name in names}
    own = value if isinstance(value, tuple) else (value,)
    every = tuple(sorted({*own, *(layer for layer in layers.values() if layer is not None)}))
    change = attempt(partial(trials.weigh, others, [(hypothesis, every)], rounds, wrong))
    failing = [name for name in wrong if change is not None and change.before[name].red]  # the others explain the rest
    left = {layers.get(name) for name in failing if change and not change.before[name].settled_by(change.after[name])}
    kept = {layers[name] for name in failing if name in layers} - left
    found = tuple(sorted({*own, *(layer for layer in kept if layer is not None)}))
    return found, [name for name in failing if layers.get(name) in kept]


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
    if hypothesis.fit is None:
        return value
    error = Curve(hypothesis.fit, lambda other: left((hypothesis, other)))
    step, middle = (error.high - error.low) / (GRID - 1), error.at(value)
    golden_section(error, *error.scan(max(middle - step, error.low), min(middle + step, error.high)), STEPS)
    return error.best
