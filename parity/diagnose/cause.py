"""One cause of a prompt's errors: a hypothesis as it was judged over all rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parity.compare.report import Place
from parity.diagnose.ranking import Trial
from parity.diagnose.residuals import Residual


@dataclass(frozen=True)
class Cause:
    """One hypothesis that brings a stage back to its floor.

    `before` and `after` are residuals at `stage`, the first failing one, over the same rounds and rows; `whole` says
    that it is back at its floor; `remaining` counts stages that still fail with it; `others` are hypotheses that
    explain the stage as well, and something else less; `alike` those that nothing observed tells apart from it.
    `doubted` says why it is in doubt: a stage at which it shows as well still fails with it, which a cause that is
    right explains too; or all wrong ids are 0, which a buffer that nothing wrote gives as well.
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
    alike: tuple[str, ...] = ()
    doubted: str = ""


def causes_of(
    trial: Trial,
    first: Residual,
    left: dict[str, Residual],
    made: Sequence[Trial],
    whole: bool,
    alike: Sequence[str] = (),
) -> list[Cause]:
    """A trial as judged over all rounds, with what it leaves at every stage, and what nothing tells apart from it."""
    sized = {hypothesis for hypothesis, _ in trial.assumed if hypothesis.part}  # at another size it says the same
    settling = [
        other
        for other in made
        if other.settles
        and len(other.assumed) == 1
        and other.assumed != trial.assumed
        and other.assumed[0][0] not in sized
    ]
    equal = [says for says in map(said_of, settling) if says not in alike]
    return [
        Cause(
            hypothesis=hypothesis.id,
            says=hypothesis.describe(value),
            value=value,
            stage=first.stage,
            place=first.place,
            explained=trial.explained,
            before=trial.before,
            after=trial.after,
            whole=whole and trial.settles,
            remaining=sum(not residual.settled for residual in left.values()),
            fix=hypothesis.fix,
            seen=tuple(hypothesis.seen),
            others=tuple(equal[:3]),
            alike=tuple(alike),
        )
        for hypothesis, value in trial.assumed
    ]


def said_of(trial: Trial) -> str:
    return " and ".join(hypothesis.describe(value) for hypothesis, value in trial.assumed)
