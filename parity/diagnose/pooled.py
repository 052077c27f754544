"""Evidence beyond the prompt that was explained: what only all prompts of a comparison show together, and the others' own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from parity.diagnose.explain import Residual, residuals
from parity.diagnose.search import Search, Trial
from parity.diagnose.trials import Assumption, Trials, Weighed, attempt
from parity.golden.slices import Joined

CONFIRMED = 5
"""The best trials that get a trial over every stage, and over every prompt where one does not show it."""

ELSEWHERE = 3
"""Other prompts that what was named has to explain as well, at the most."""


def together(parts: Sequence[Trials], assumed: Sequence[Assumption]) -> dict[str, Residual]:
    """What assumptions leave at every stage of all these prompts, judged as one comparison."""
    views = [(one.imagined(assumed, one.rounds), one.cut(one.rounds)[1]) for one in parts]
    golden, run = (Joined(side) for side in zip(*views, strict=True))
    return residuals(golden, run, parts[0].policy)


def faint(
    trials: Trials, hypotheses: Sequence[Any], first: Residual
) -> tuple[Trial | None, list[Trial], dict[str, Residual]]:
    """Explain a stage that fails over all prompts and over none alone.

    Every hypothesis is tried on the prompt where it first shows; the ones that explain most there are judged over all.

    Returns:
        The trial that brings the stage back to its floor, or None; every trial made; what the first leaves.
    """
    made = Search(trials, hypotheses, (), first).alone()
    parts = sorted((trials, *trials.beside()), key=lambda one: one.prompt)
    before = together(parts, ())
    for trial in [one for one in made if one.explained > 0][:CONFIRMED]:
        after = attempt(lambda trial=trial: together(parts, trial.assumed))
        if after and first.stage in after and first.stage in before:
            whole = replace(trial, before=before[first.stage], after=after[first.stage])
            if whole.settles and not any(one.red and not before[name].red for name, one in after.items()):
                return whole, made, after
    return None, made, before


def elsewhere(
    trials: Trials, known: Sequence[Assumption], evidence: Sequence[Residual]
) -> tuple[Trials, Residual] | None:
    """The first other prompt, and its first stage, that what is known does not explain; prompts that fail first."""
    failing = {one.place.prompt for one in evidence if one.place}
    others = sorted(trials.beside(), key=lambda one: one.prompt not in failing)
    for other in others[:ELSEWHERE]:
        found = attempt(
            lambda other=other: Weighed(other.residuals((), other.rounds), other.residuals(known, other.rounds))
        )
        before, after = (found.before, found.after) if found else (other.residuals((), other.rounds),) * 2
        for name, one in after.items():
            if one.red and not (name in before and before[name].red and before[name].settled_by(one)):
                return other, one
    return None
