"""Triangulation: references of one case held against each other.

Two independent references that agree on a stage make it corroborated. Where two disagree, nobody can say which of
them is wrong, and neither is trusted there; a third one that agrees with one of them outvotes the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from parity.compare.rows import order
from parity.corroborate.pair import AGREE, DISAGREE, Pair, hold
from parity.corroborate.standing import ALONE, CORROBORATED, DISPUTED, OUTVOTED, Standing, settled, standing_of
from parity.errors import UsageError
from parity.golden.manifest import Corroboration
from parity.golden.store import Dump
from parity.policy import Policy


@dataclass(frozen=True)
class Triangulation:
    """All references, all stages: `single` only one of them has; `first` is the earliest at which any two part."""

    names: tuple[str, ...]
    folders: tuple[str, ...]
    pairs: tuple[Pair, ...]
    stages: dict[str, Standing]
    single: tuple[str, ...]
    first: Standing | None
    policy: str

    @property
    def verdict(self) -> str:
        """`disputed` or `outvoted` where references disagree; `corroborated`; or `uncorroborated`."""
        seen = {standing.verdict for standing in self.stages.values()}
        return next((one for one in (DISPUTED, OUTVOTED, CORROBORATED) if one in seen), ALONE)

    @property
    def exit_code(self) -> int:
        """0 where stages are corroborated and none is disputed, 1 where references disagree, 3 without evidence."""
        return {CORROBORATED: 0, ALONE: 3}.get(self.verdict, 1)

    def count(self, verdict: str) -> int:
        """Stages of this verdict."""
        return sum(standing.verdict == verdict for standing in self.stages.values())

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        stages = {name: asdict(one) | {"held": [asdict(held) for held in one.held.values()]} for name, one in self.stages.items()}
        return asdict(self) | {"stages": stages, "first": self.first and self.first.stage} | {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
        }


def triangulate(goldens: Sequence[Dump], policy: Policy) -> Triangulation:
    """Hold every two of these goldens against each other.

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
    )


def corroborations(found: Triangulation, goldens: Sequence[Dump]) -> tuple[Corroboration, ...]:
    """What the first golden's manifest says of each other reference.

    A witness confirms nothing that it shares source of; one that is outvoted disputes nothing.
    """
    marks = []
    for pair in (pair for pair in found.pairs if pair.one == 0):
        witness = goldens[pair.other].manifest.producer
        held = {name: one.verdict for name, one in pair.stages.items()}
        alone = {name for name, standing in found.stages.items() if pair.other in standing.blamed}
        marks.append(
            Corroboration(
                witness=witness.name,
                versions=witness.versions,
                source_digest=witness.source_digest,
                prompts=pair.prompts,
                policy=found.policy,
                stages=tuple(name for name in held if held[name] == AGREE and name not in pair.shared),
                disputed=tuple(name for name in held if held[name] == DISAGREE and name not in alone),
            )
        )
    return tuple(marks)


def _first(golden: Dump, stages: dict[str, Standing]) -> Standing | None:
    """By round, then along the dataflow."""
    rank = order(golden)

    def key(standing: Standing) -> tuple[int, int]:
        place = standing.parting.place
        round_ = place.round if place else 0
        return round_, rank.get((round_ > 0, standing.stage), 0)

    return min((one for one in stages.values() if one.parting), key=key, default=None)


def _name(golden: Dump) -> str:
    """The producer, with the version of what it is named after."""
    producer = golden.manifest.producer
    version = producer.versions.get(producer.name)
    return f"{producer.name} {version}" if version else producer.name
