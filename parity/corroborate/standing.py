"""How one stage stands among all references: confirmed, disputed, or one of them outvoted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parity.compare.flow import behind
from parity.corroborate.pair import AGREE, DISAGREE, Held, Pair
from parity.stages import Named

CORROBORATED, DISPUTED, OUTVOTED, ALONE = "corroborated", "disputed", "outvoted", "uncorroborated"


@dataclass(frozen=True)
class Standing:
    """One stage among all references.

    `verdict`: corroborated; disputed (nobody can say who is wrong); outvoted (`blamed` are alone against others that
    confirm each other); uncorroborated (fewer than two independent ones show it). `held` are its comparisons, by pair.
    """

    stage: str
    verdict: str
    agreeing: tuple[int, ...]
    blamed: tuple[int, ...]
    held: dict[tuple[int, int], Held]

    @property
    def parting(self) -> Held | None:
        """The earliest place where two part."""
        apart = [held for held in self.held.values() if held.verdict == DISAGREE]
        return min(apart, key=lambda held: held.place.round if held.place else 0, default=None)


def standing_of(name: str, pairs: Sequence[Pair]) -> Standing:
    """One stage by its comparisons: a reference is blamed where two that confirm each other both part from it."""
    held = {(pair.one, pair.other): pair.stages[name] for pair in pairs if name in pair.stages}
    confirmed = [
        {pair.one, pair.other}
        for pair in pairs
        if name not in pair.shared and name in pair.stages and pair.stages[name].verdict == AGREE
    ]
    apart = [set(pair) for pair, one in held.items() if one.verdict == DISAGREE]
    agreeing = set().union(*confirmed)
    if not apart:
        return Standing(name, CORROBORATED if confirmed else ALONE, tuple(sorted(agreeing)), (), held)
    blamed = {one for pair in apart for one in pair if one not in agreeing and _against(one, apart, confirmed)}
    settled = all(pair & blamed for pair in apart)
    return Standing(name, OUTVOTED if settled else DISPUTED, tuple(sorted(agreeing)), tuple(sorted(blamed)), held)


def settled(stages: dict[str, Standing], names: Mapping[str, Named]) -> dict[str, Standing]:
    """A reference that is outvoted at a stage is the one that is wrong in what is computed from it, too."""
    found = dict(stages)
    for name, standing in stages.items():
        if standing.verdict == DISPUTED:
            sources = behind(name, names)
            blamed = {one for other in sources if other in stages for one in stages[other].blamed} | set(standing.blamed)
            apart = [set(pair) for pair, held in standing.held.items() if held.verdict == DISAGREE]
            if all(pair & blamed for pair in apart):
                guilty = tuple(sorted(blamed & set().union(*apart)))
                found[name] = replace(standing, verdict=OUTVOTED, blamed=guilty)
    return found


def _against(one: int, apart: Sequence[set[int]], confirmed: Sequence[set[int]]) -> bool:
    """Whether two that confirm each other both part from this one."""
    others = {other for pair in apart if one in pair for other in pair - {one}}
    return any(pair <= others for pair in confirmed)
