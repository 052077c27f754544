"""From a red comparison to its causes: counterfactual references, peeled off in the order in which they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.compare.report import Place
from parity.diagnose.explain import Residual
from parity.diagnose.search import AHEAD, Search, Trial, ranked
from parity.diagnose.signature import signature
from parity.diagnose.trials import Assumption, Trials, attempt

CAUSES = 6
"""Causes peeled off one after another at the most."""

CONFIRMED = 5
"""Satisfying trials that get a full trial over every stage."""


@dataclass(frozen=True)
class Cause:
    """One hypothesis that brings a stage back to its floor.

    `before` and `after` are residuals at `stage`, the first red one; `remaining` counts stages still red
    with it; `others` are hypotheses that explain the stage as well (they cannot be told apart by it).
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
    fix: str = ""
    seen: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """Causes in the order in which they show; `unexplained` is the first stage that stays red, with its signature.

    `nearest` are the best hypotheses for it, with the share that each explains.
    """

    mode: str
    prompt: int
    first: Place | None
    causes: tuple[Cause, ...] = ()
    unexplained: Residual | None = None
    nearest: tuple[tuple[str, float], ...] = ()
    signature: tuple[str, ...] = ()
    trials: int = 0
    notes: tuple[str, ...] = field(default=())


def diagnose(trials: Trials, hypotheses: Sequence[Any], first: Place) -> Diagnosis:
    """Explain a device's errors on one prompt, one cause after another.

    Args:
        first: where the run first diverges; rounds behind it are looked at as well.
    """
    rounds = min(first.round + AHEAD, trials.rounds)
    known: tuple[Assumption, ...] = ()
    causes: list[Cause] = []
    left = trials.residuals((), rounds)
    while len(causes) < CAUSES:
        red = [residual for residual in left.values() if residual.red]
        if not red:
            return Diagnosis(_mode(trials), trials.prompt, first, tuple(causes), trials=trials.count)
        search = Search(trials, hypotheses, known, red[0])
        confirmed: dict[int, dict[str, Residual]] = {}

        def confirm(satisfying: Sequence[Trial]) -> Trial | None:
            for trial in satisfying[:CONFIRMED]:
                if id(trial) not in confirmed:
                    confirmed[id(trial)] = attempt(lambda: trials.residuals((*known, *trial.assumed), rounds)) or {}
            good = [trial for trial in satisfying if _better(confirmed.get(id(trial), {}), left, red[0])]
            return min(good, key=lambda trial: _rank(trial, confirmed[id(trial)]), default=None)

        found, made = search.best(confirm)
        if found is None:
            break
        left = confirmed[id(found)]
        known = (*known, *found.assumed)
        causes += _causes(found, left, red[0], made)
    golden, run = trials.cut(rounds)
    return Diagnosis(
        _mode(trials),
        trials.prompt,
        first,
        tuple(causes),
        unexplained=red[0],
        nearest=tuple((_says(trial), trial.explained) for trial in ranked(made)[:3] if trial.explained > 0),
        signature=tuple(signature(golden, run, red[0])),
        trials=trials.count,
    )


def _better(after: dict[str, Residual], before: dict[str, Residual], first: Residual) -> bool:
    """The first red stage is green again, and no stage that was within its bounds has become red."""
    if not after or after[first.stage].red:
        return False
    return all(before[name].worst > 1.0 for name, residual in after.items() if residual.red and name in before)


def _rank(trial: Trial, after: dict[str, Residual]) -> tuple:
    """Fewest stages left red; then the fewest assumptions, the least residual."""
    return sum(residual.red for residual in after.values()), len(trial.assumed), trial.after.error


def _causes(found: Trial, left: dict[str, Residual], first: Residual, made: Sequence[Trial]) -> list[Cause]:
    equal = [_says(one) for one in made if one is not found and not one.after.red and len(one.assumed) == 1]
    return [
        Cause(
            hypothesis=hypothesis.id,
            says=hypothesis.says.format(value=value),
            value=value,
            stage=first.stage,
            place=first.place,
            explained=found.explained,
            before=first,
            after=left[first.stage],
            remaining=sum(residual.red for residual in left.values()),
            fix=hypothesis.fix,
            seen=tuple(hypothesis.seen),
            others=tuple(equal[:3]),
        )
        for hypothesis, value in found.assumed
    ]


def _says(trial: Trial) -> str:
    return " and ".join(hypothesis.says.format(value=value) for hypothesis, value in trial.assumed)


def _mode(trials: Trials) -> str:
    return trials.run.manifest.case.mode
