"""Triangulation: references of one case compared with each other.

Two independent references that agree on a stage make it corroborated. Where two disagree, nobody can say which of
them is wrong, and neither is trusted there; a third one that agrees with one of them outvotes the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from parity.compare.report import INCONCLUSIVE
from parity.compare.rows import order
from parity.corroborate.pair import AGREE, DISAGREE, UNSEEN, ReferencePair, hold
from parity.corroborate.standing import ALONE, CORROBORATED, DISPUTED, OUTVOTED, StageStanding, settled, standing_of
from parity.errors import UsageError
from parity.golden.producer import Corroboration
from parity.golden.views import DumpView
from parity.policy import Policy


@dataclass(frozen=True)
class Triangulation:
    """All references, all stages: `single` only one of them has; `first` is the earliest at which any two part.

    `prompts` are those of the first one.
    """

    names: tuple[str, ...]
    folders: tuple[str, ...]
    pairs: tuple[ReferencePair, ...]
    stages: dict[str, StageStanding]
    single: tuple[str, ...]
    first: StageStanding | None
    policy: str
    prompts: int

    @property
    def verdict(self) -> str:
        """`disputed` or `outvoted` where references disagree; `corroborated`; or `uncorroborated`.

        `inconclusive` where stages are corroborated and others, that two of them have, could not be compared.
        """
        seen = {standing.verdict for standing in self.stages.values()}
        seen |= {INCONCLUSIVE} if CORROBORATED in seen and self.unseen else set()
        return next((one for one in (DISPUTED, OUTVOTED, INCONCLUSIVE, CORROBORATED) if one in seen), ALONE)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Stages that two have or more, and that could not be compared between any."""
        return tuple(
            name for name, one in self.stages.items() if {held.verdict for held in one.held.values()} == {UNSEEN}
        )

    @property
    def exit_code(self) -> int:
        """0 where stages are corroborated and none is disputed, 1 where references disagree, 3 without evidence."""
        return {CORROBORATED: 0, ALONE: 3, INCONCLUSIVE: 3}.get(self.verdict, 1)

    def count(self, verdict: str) -> int:
        """Stages of this verdict."""
        return sum(standing.verdict == verdict for standing in self.stages.values())

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        stages = {
            name: asdict(one) | {"held": [asdict(held) for held in one.held.values()]}
            for name, one in self.stages.items()
        }
        return (
            asdict(self)
            | {"stages": stages, "first": self.first and self.first.stage}
            | {
                "verdict": self.verdict,
                "unseen": self.unseen,
                "exit_code": self.exit_code,
            }
        )


def triangulate(goldens: Sequence[DumpView], policy: Policy) -> Triangulation:
    """Compare every two of these goldens.

    Raises:
        UsageError: fewer than two, or not of one case.
    """
    if len(goldens) < 2:
        raise UsageError("one reference is one opinion: name two goldens or more")
    goldens = list(goldens)
    pairs = [hold(goldens, one, other, policy) for one, other in combinations(range(len(goldens)), 2)]
    names = [name for name in goldens[0].declared if any(name in pair.stages for pair in pairs)]
    stages = settled({name: standing_of(name, pairs) for name in names}, goldens[0].declared)
    declared = {name for golden in goldens for name in golden.manifest.stages}
    return Triangulation(
        names=tuple(_name(golden) for golden in goldens),
        folders=tuple(str(golden.folder) for golden in goldens),
        pairs=tuple(pairs),
        stages=stages,
        single=tuple(name for name in goldens[0].declared if name in declared and name not in stages),
        first=_first(goldens[0], stages),
        policy=policy.name,
        prompts=len(goldens[0].manifest.case.prompts),
    )


def corroborations(triangulation: Triangulation, goldens: Sequence[DumpView]) -> tuple[Corroboration, ...]:
    """What the first golden's manifest says of each other reference; of those not asked this time, what it said before.

    A witness confirms nothing that it shares source of, one that is outvoted disputes nothing, and one that names no
    source does neither: it could be the device's own output.
    """
    asked = {golden.manifest.producer.name for golden in goldens[1:]}
    marks = [mark for mark in goldens[0].manifest.corroborations if mark.witness not in asked]
    for pair in (pair for pair in triangulation.pairs if pair.one == 0):
        witness = goldens[pair.other].manifest.producer
        marks.append(
            Corroboration(
                witness=witness.name,
                versions=witness.versions,
                source_digest=witness.source_digest,
                prompts=len(pair.prompts),
                policy=triangulation.policy,
                stages=tuple(
                    name
                    for name in pair.stages
                    if name not in pair.shared and _confirms(pair, triangulation.stages[name])
                ),
                disputed=tuple(
                    name for name in pair.stages if witness.modules and _disputes(pair, triangulation.stages[name])
                ),
            )
        )
    return tuple(marks)


def _confirms(pair: ReferencePair, standing: StageStanding) -> bool:
    """Whether the two agree, and no other reference disputes it."""
    return pair.stages[standing.stage].verdict == AGREE and standing.verdict != DISPUTED


def _disputes(pair: ReferencePair, standing: StageStanding) -> bool:
    """Whether the witness parts from the golden, or, not compared with it, from another in a dispute that is open."""
    verdict = pair.stages[standing.stage].verdict
    if pair.other in standing.blamed or verdict == AGREE:
        return False
    parts = any(pair.other in both and held.verdict == DISAGREE for both, held in standing.held.items())
    return verdict == DISAGREE or (parts and standing.verdict == DISPUTED)


def _first(golden: DumpView, stages: dict[str, StageStanding]) -> StageStanding | None:
    """By round, then along the dataflow."""
    rank = order(golden)

    def key(standing: StageStanding) -> tuple[int, int]:
        place = standing.parting and standing.parting.place
        round_ = place.round if place else 0
        return round_, rank.get((round_ > 0, standing.stage), 0)

    return min((one for one in stages.values() if one.parting), key=key, default=None)


def _name(golden: DumpView) -> str:
    """The producer, with the version of what it is named after."""
    producer = golden.manifest.producer
    version = producer.versions.get(producer.name)
    return f"{producer.name} {version}" if version else producer.name
