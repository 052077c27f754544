"""How one stage stands among all references: confirmed, disputed, or one of them outvoted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parity.compare.places import behind
from parity.corroborate.pair import AGREE, DISAGREE, ReferencePair, StageAgreement
from parity.stages import Named

CORROBORATED, DISPUTED, OUTVOTED, ALONE = "corroborated", "disputed", "outvoted", "uncorroborated"


@dataclass(frozen=True)
class StageStanding:
    """One stage among all references.

    `verdict`: corroborated; disputed (nobody can say who is wrong); outvoted (`blamed` are alone against others that
    confirm each other); uncorroborated (fewer than two independent ones show it). `held` are its comparisons, by pair.
    """

    stage: str
    verdict: str
    agreeing: tuple[int, ...]
    blamed: tuple[int, ...]
    held: dict[tuple[int, int], StageAgreement]

    @property
    def parting(self) -> StageAgreement | None:
        """The earliest place where two part."""
        apart = [held for held in self.held.values() if held.verdict == DISAGREE]
        return min(apart, key=_round, default=None)


def standing_of(name: str, pairs: Sequence[ReferencePair]) -> StageStanding:
    """One stage by its comparisons: a reference is blamed where two that confirm each other both part from it."""
    pairs = [pair for pair in pairs if name in pair.stages]
    held = {(pair.one, pair.other): pair.stages[name] for pair in pairs}
    confirmed = [pair for pair in pairs if name not in pair.shared and pair.stages[name].verdict == AGREE]
    apart = [pair for pair in pairs if pair.stages[name].verdict == DISAGREE]
    agreeing = set().union(*(pair.both for pair in confirmed))
    if not apart:
        return StageStanding(name, CORROBORATED if confirmed else ALONE, tuple(sorted(agreeing)), (), held)
    blamed = {one for pair in apart for one in pair.both - agreeing if _against(one, apart, confirmed)}
    settled = all(pair.both & blamed for pair in apart)
    return StageStanding(name, OUTVOTED if settled else DISPUTED, tuple(sorted(agreeing)), tuple(sorted(blamed)), held)


def settled(stages: dict[str, StageStanding], names: Mapping[str, Named]) -> dict[str, StageStanding]:
    """Blame a reference that is outvoted at a stage, from that round on, for what is computed from that stage."""
    decided, before = dict(stages), behind(names)
    for name, standing in stages.items():
        if standing.verdict == DISPUTED:
            sources = [stages[other] for other in before[name] if other in stages]
            guilty = [
                {
                    one
                    for one in both
                    if one in standing.blamed or any(_outvoted(it, one) <= _round(held) for it in sources)
                }
                for both, held in standing.held.items()
                if held.verdict == DISAGREE
            ]
            if all(guilty):
                decided[name] = replace(standing, verdict=OUTVOTED, blamed=tuple(sorted(set().union(*guilty))))
    return decided


def _outvoted(source: StageStanding, one: int) -> float:
    """The first round in which a reference is outvoted at a stage; infinity where it is not."""
    rounds = [_round(held) for both, held in source.held.items() if one in both and held.verdict == DISAGREE]
    return min(rounds) if one in source.blamed else float("inf")


def _round(held: StageAgreement) -> int:
    return held.place.round if held.place else 0


def _against(one: int, apart: Sequence[ReferencePair], confirmed: Sequence[ReferencePair]) -> bool:
    """Whether two that confirm each other both part from this one, and confirmed each other on all those prompts."""
    others = {other: set(pair.prompts) for pair in apart if one in pair.both for other in pair.both - {one}}
    return any(
        pair.both <= others.keys() and set(pair.prompts) >= others[pair.one] | others[pair.other] for pair in confirmed
    )
