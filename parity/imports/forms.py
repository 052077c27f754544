"""Names of one form: what differs between them are numbers, which a layer, a round or a prompt follows from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from parity.imports.captured import Captured
from parity.imports.pairing import Fit, Paired

DIGITS = re.compile("([0-9]+)")
SEEDS = 4
"""Tensors of a form whose fits are tried as a rule of all."""
FIELDS = 6
"""Numbers within a name that may be a layer, a round or a prompt."""
Place = tuple[int, int, str]


def form(name: str) -> str:
    """A name without its numbers."""
    return DIGITS.sub("0", name)


@dataclass(frozen=True)
class Member:
    """One tensor of a form of names.

    Args:
        numbers: by the place in the name, and `step`.
        narrow: whether its float32 numbers are all bfloat16's; None where it has none.
    """

    captured: Captured
    paired: Paired
    numbers: Mapping[str, int]
    narrow: bool | None = None

    @property
    def fits(self) -> dict[Place, Fit]:
        """Where it may go as it is."""
        return {fit.place: fit for fit in self.paired.fits if not (fit.added or fit.scaled or fit.part)}


@dataclass(frozen=True)
class Rule:
    """How the places of all tensors of one form follow from the numbers in their names.

    Args:
        template: of the stage.
        said: each coordinate (`l`, `round` and `prompt` of a stage) to the number in the name (None for none) and what
            is added to it.
        places: of each member, in order.
    """

    template: str
    said: Mapping[str, tuple[str | None, int]]
    places: tuple[Place, ...]


def is_narrow(array: NDArray[np.generic]) -> bool | None:
    """Whether float32 numbers are all bfloat16's: their last 16 bits are zero."""
    if array.dtype != np.float32:
        return None
    return not np.any(np.ascontiguousarray(array).view(np.uint32) & np.uint32(0xFFFF))


def numbers_of(captured: Captured) -> dict[str, int]:
    """Whole numbers in a tensor's name by their place, `n0` on, and its `step`."""
    found = [number for number in DIGITS.findall(captured.name) if len(number) < 10][:FIELDS]
    numbers = {f"n{place}": int(number) for place, number in enumerate(found)}
    return numbers if captured.step is None else numbers | {"step": captured.step}


def rules_of_all(members: Sequence[Member]) -> list[Rule]:
    """The rules that every tensor of a form follows, of those that say the same the plainest."""
    found: dict[tuple[Place, ...], Rule] = {}
    for rule in _possible(members[0], members):
        if len(set(rule.places)) == len(members) == len(_following(members, rule)):
            found.setdefault(rule.places, rule)
    return list(found.values())


def rule_of_most(members: Sequence[Member]) -> tuple[list[Member], Rule] | None:
    """The one rule that most of the tensors follow that are like something, and they; None where there is none."""
    fitting = [member for member in members if member.fits]
    found: dict[tuple[Place, ...], tuple[list[Member], Rule]] = {}
    for start in fitting[:SEEDS]:
        for rule in _possible(start, fitting):
            following = _following(fitting, rule)
            places = tuple(place for member, place in zip(fitting, rule.places, strict=True) if member in following)
            if 1 < len(following) > len(fitting) / 2 and len(set(places)) == len(places) and _apart(members, following):
                found.setdefault(places, (following, Rule(rule.template, rule.said, places)))
    most = max((len(following) for following, _ in found.values()), default=0)
    best = [each for each in found.values() if len(each[0]) == most]
    return best[0] if len(best) == 1 else None


def _possible(start: Member, members: Sequence[Member]) -> Iterator[Rule]:
    """Every rule by which this tensor has one of its fits."""
    sources = [None, *(name for name in start.numbers if all(name in one.numbers for one in members))]
    for fit in start.fits.values():
        coordinates, template = fit.known.coordinates, fit.known.template
        for chosen in product(sources, repeat=len(coordinates)):
            said = {
                what: (source, value - (start.numbers[source] if source else 0))
                for (what, value), source in zip(coordinates.items(), chosen, strict=True)
            }
            yield Rule(template, said, tuple(place_of(template, said, member) for member in members))


def place_of(template: str, said: Mapping[str, tuple[str | None, int]], member: Member) -> Place:
    """Where a rule has a tensor go."""
    values = {what: (member.numbers[source] if source else 0) + added for what, (source, added) in said.items()}
    return values.get("prompt", 0), values.get("round", 0), template.format(**values)


def _following(members: Sequence[Member], rule: Rule) -> list[Member]:
    """The tensors that are like the place that a rule gives them, laid out as most of them are."""
    fits = [member.fits.get(place) for member, place in zip(members, rule.places, strict=True)]
    counts = Counter((fit.axes, fit.first) for fit in fits if fit)
    layout = counts.most_common(1)[0][0] if counts else None
    return [member for member, fit in zip(members, fits, strict=True) if fit and (fit.axes, fit.first) == layout]


def _apart(members: Sequence[Member], fitting: Sequence[Member]) -> bool:
    """Whether no name is of both kinds, in one step this and in another that."""
    names = {member.captured.name for member in fitting}
    return sum(member.captured.name in names for member in members) == len(fitting)
