"""The simplest condition that separates the bad rows of a stage from the clean ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import lgamma, log, log2

import numpy as np

from parity.compare.facts import Facts

FEWEST = 3
"""Rows of a stage from which "every row" says something."""

FEW_ROWS = "too few rows"
"""How a relation begins that tells none."""

BITS = 10.0
"""A condition among n tried is believed where chance picks such rows less than once in 2^10 n times."""

PERIODS = tuple(2**power for power in range(1, 13))
"""Tiles and pages are powers of two."""

NEAR = (0, -1, 1)
"""A bound that is off by one breaks one row before or behind the config's."""


@dataclass(frozen=True)
class Predicate:
    """A condition in words, what says where it holds (bool [R] of the facts of any rows), and out of how many it was
    chosen."""

    says: str
    holds: Callable[[Facts], np.ndarray]
    tried: int = 1

    def inside(self, other: Predicate, joint: str = ", in ") -> Predicate:
        """Where both hold."""
        says = f"{self.says}{joint}{other.says}"
        return Predicate(says, lambda facts: self.holds(facts) & other.holds(facts), self.tried * other.tried)


PredicateFamily = Callable[[Facts, np.ndarray], Iterator[Predicate]]
"""From the facts and the bad rows [R]; where it takes a number from the bad rows, `tried` counts what it chose from."""


def relation(bad: np.ndarray, judged: np.ndarray, facts: Facts) -> str:
    """What the bad rows have in common and the clean ones have not; '' where nothing was found.

    Args:
        bad, judged: bool [R]; rows that are not judged (set apart) are neither bad nor clean.
    """
    count, all_ = int(bad[judged].sum()), int(judged.sum())
    if not count:
        return ""
    if count == all_ >= FEWEST:
        return "every row"
    for predicate, believed in separating(bad, judged, facts):
        return predicate.says if believed else f"{FEW_ROWS} ({count} bad of {all_}) to tell a condition"
    return _edge(bad, judged, facts) or _most_of(bad, judged, facts)


def separating(bad: np.ndarray, judged: np.ndarray, facts: Facts) -> Iterator[tuple[Predicate, bool]]:
    """The conditions that hold for exactly the bad ones of the rows judged, the simplest first, each with whether
    chance would hardly pick such rows."""
    bits, number = _bits(int(judged.sum()), int(bad[judged].sum())), 0
    for predicate in _predicates(facts, bad & judged):
        number += predicate.tried
        if np.array_equal(predicate.holds(facts)[judged], bad[judged]):
            yield predicate, bits >= BITS + log2(number)


def _bits(all_: int, count: int) -> float:
    """log2 of the ways to pick so many rows of all."""
    return (lgamma(all_ + 1) - lgamma(count + 1) - lgamma(all_ - count + 1)) / log(2)


def _predicates(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Every family alone, then inside the prefill, the later passes, and some layers."""
    for family in FAMILIES:
        yield from family(facts, bad)
    for joint, others, own in ((", in ", passes(facts), _only_passes), (", ", _layers(facts, bad), _layers)):
        for other in others:
            for family in (family for family in FAMILIES if family is not own):
                for predicate in family(facts, bad & other.holds(facts)):
                    yield predicate.inside(other, joint)
    yield from _stretch(facts, bad)


def _edge(bad: np.ndarray, judged: np.ndarray, facts: Facts) -> str:
    """A place of the config before which no row is bad, and that the first bad row sits on."""
    first = int(facts.position[bad & judged].min())
    behind = judged & (facts.position >= first)
    chance = int(bad[judged].sum()) * log2(judged.sum() / behind.sum())
    named = [says for says, off, number in _places(facts) if np.all(_place(facts, off, number) == first)]
    if chance < BITS or not named:
        return ""
    return f"none before {first} = {named[0]}, {int((bad & judged).sum())} of {int(behind.sum())} rows from there on"


MANY = 0.5
"""The share of a condition's rows that are bad where it is told all the same: some are off by less than noise."""


def _most_of(bad: np.ndarray, judged: np.ndarray, facts: Facts) -> str:
    """The condition outside of which no row is bad, and most rows inside are; the one with the fewest clean ones."""
    all_, count, number = int(judged.sum()), int(bad[judged].sum()), 0
    best, said = MANY, ""
    for predicate in _predicates(facts, bad & judged):
        number += predicate.tried
        inside = predicate.holds(facts) & judged
        share = count / max(int(inside.sum()), 1)
        if (bad & judged & ~inside).any() or share <= best:
            continue
        if _bits(all_, count) - _bits(int(inside.sum()), count) >= BITS + log2(number):
            best, said = share, f"{predicate.says}: {count} of {int(inside.sum())} rows, and no other"
    return said


_ABSENT = {"layer": -1, "accepted": -1, "cached": 0, "token": -1}
"""What stands where a fact of a row is not known."""


def _known(facts: Facts, name: str) -> np.ndarray:
    values: np.ndarray | None = getattr(facts, name)
    return np.full(len(facts.prompt), _ABSENT[name]) if values is None else values


def _is(name: str, value: int) -> Callable[[Facts], np.ndarray]:
    return lambda facts: np.asarray(_known(facts, name) == value)


def _least(name: str, value: int) -> Callable[[Facts], np.ndarray]:
    return lambda facts: np.asarray(_known(facts, name) >= value)


def _most(name: str, value: int) -> Callable[[Facts], np.ndarray]:
    """A layer or an accepted count that there is none of is not less than any."""
    first = _ABSENT.get(name, -1) + 1 if name in ("layer", "accepted", "token") else 0
    return lambda facts: np.asarray((_known(facts, name) <= value) & (_known(facts, name) >= first))


def _rest(name: str, period: int, rest: int) -> Callable[[Facts], np.ndarray]:
    return lambda facts: np.asarray((_known(facts, name) >= 0) & (_known(facts, name) % period == rest))


def passes(facts: Facts) -> Iterator[Predicate]:
    """Prefill against the passes of later rounds."""
    later = {"target": "verify rows", "verify": "verify rows"}.get(facts.side, "rows of later rounds")
    yield Predicate("prefill rows", lambda facts: facts.round == 0)
    yield Predicate(later, lambda facts: facts.round > 0)


def _only_passes(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    yield from (Predicate(f"{inside.says} only", inside.holds) for inside in passes(facts))


def _layers(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """One layer, odd or even ones, or from one on; where the rows are of several."""
    if facts.layer is None or not bad.any():
        return
    layers = facts.layer
    least, most, tried = int(layers[bad].min()), int(layers[bad].max()), len(np.unique(layers))
    yield Predicate(f"layer {least} only", _is("layer", least), tried)
    yield Predicate("odd layers only", _rest("layer", 2, 1))
    yield Predicate("even layers only", _rest("layer", 2, 0))
    yield Predicate(f"from layer {least} on", _least("layer", least), tried)
    yield Predicate(f"up to layer {most}", _most("layer", most), tried)


def _ends(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """First and last rows."""
    yield Predicate("position 0 only", lambda facts: facts.position == 0)
    yield Predicate("row 0 of every pass", lambda facts: facts.index == 0)
    yield Predicate("the last row of every pass", lambda facts: facts.index == facts.count - 1)
    yield Predicate("every row of a pass but its first", lambda facts: facts.index > 0)
    yield Predicate("every row of a pass but its last", lambda facts: facts.index < facts.count - 1)
    yield Predicate("every position but 0", lambda facts: facts.position > 0)


def _drafted(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Committed and masked rows of the drafter."""
    if not (facts.committed >= 0).any():
        return

    def known(facts: Facts) -> np.ndarray:
        return np.asarray(facts.committed >= 0)

    yield Predicate("masked rows only", lambda facts: known(facts) & (facts.index >= facts.committed))
    yield Predicate("committed rows only", lambda facts: ~known(facts) | (facts.index < facts.committed))
    yield Predicate("the NTP row only", lambda facts: known(facts) & (facts.index == facts.committed - 1))
    yield Predicate("the first masked row only", lambda facts: known(facts) & (facts.index == facts.committed))


def _thresholds(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """From a place that the config or the prompt knows on, or before it."""
    for says, off, number in _places(facts):
        place = partial(_place, off=off, number=number)
        where = says if number is None else f"{number + off} = {says}"
        yield Predicate(f"from {where} on", partial(_from, place=place))
        yield Predicate(f"before {where}", partial(_before, place=place))


def _places(facts: Facts) -> Iterator[tuple[str, int, int | None]]:
    """Places in the sequence with a name: the prompt's end (None), and the lengths of the config, one off included."""
    named: list[tuple[str, int | None]] = [("the prompt's end", None), *facts.lengths.items()]
    for off in NEAR:
        for name, number in named:
            yield name + (f" {'+' if off > 0 else '-'} {abs(off)}" if off else ""), off, number


def _place(facts: Facts, off: int, number: int | None) -> np.ndarray | int:
    return (facts.prompts if number is None else number) + off


def _from(facts: Facts, place: Callable[[Facts], np.ndarray | int]) -> np.ndarray:
    return np.asarray(facts.position >= place(facts))


def _before(facts: Facts, place: Callable[[Facts], np.ndarray | int]) -> np.ndarray:
    return np.asarray(facts.position < place(facts))


def _experts(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    for expert in facts.experts:
        yield Predicate(f"expert {expert}'s rows", partial(_of_expert, expert=expert))


def _of_expert(facts: Facts, expert: int) -> np.ndarray:
    return facts.experts.get(expert, np.zeros(len(facts.prompt), bool))


def _parts(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """One prompt, one round, everything from one on, or every other round."""
    for name in ("prompt", "round"):
        for number in np.unique(getattr(facts, name)[bad])[:1].tolist():
            tried = int(getattr(facts, name).max()) + 1
            yield Predicate(f"{name} {number} only", _is(name, number), tried)
            yield Predicate(f"from {name} {number} on", _least(name, number), tried)
    for rest, says in ((1, "odd rounds only"), (0, "even rounds behind the prefill only")):
        yield Predicate(says, partial(_round_of, rest=rest))


def _round_of(facts: Facts, rest: int) -> np.ndarray:
    return np.asarray((facts.round > 0) & (facts.round % 2 == rest))


def _behind(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """What the round before accepted."""
    if facts.accepted is None:
        return
    for accepted in np.unique(facts.accepted[bad])[:1].tolist():
        tried, much = len(np.unique(facts.accepted)), {0: "nothing", 1: "one draft"}.get(accepted, f"{accepted} drafts")
        if accepted >= 0:
            says = f"rounds behind one that accepted {much}"
            yield Predicate(says, _is("accepted", accepted), tried)
            yield Predicate(f"{says} or more", _least("accepted", accepted), tried)


def _caches(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """How many rows were in the cache before the pass."""
    if facts.cached is None or not bad.any():
        return
    least, most, tried = int(facts.cached[bad].min()), int(facts.cached[bad].max()), len(np.unique(facts.cached))
    yield Predicate(f"passes with {least} cached rows or more", _least("cached", least), tried)
    yield Predicate(f"passes with {most} cached rows or fewer", _most("cached", most), tried)


def _periods(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Every 2^n-th position, and every 2^n-th row of a pass."""
    for what, name in (("position", "position"), ("row of a pass", "index")):
        values = getattr(facts, name)
        for period in PERIODS:
            rest = values[bad][:1] % period
            if period > values.max(initial=0) or not rest.size:
                break
            says = f"every {_nth(period)} {what}, from {rest[0]} on"
            yield Predicate(says, _rest(name, period, int(rest[0])), period)


def _tokens(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """One token, the ids from one on, or those up to one."""
    if facts.token is None or not bad.any() or (facts.token[bad] < 0).any():
        return
    least, most, tried = int(facts.token[bad].min()), int(facts.token[bad].max()), len(np.unique(facts.token))
    if least == most:
        yield Predicate(f"token {least} only", _is("token", least), tried)
    yield Predicate(f"token ids from {least} on", _least("token", least), tried)
    yield Predicate(f"token ids up to {most}", _most("token", most), tried)


def _anywhere(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """From any place on or before it, whoever set it."""
    if bad.any():
        least, most = int(facts.position[bad].min()), int(facts.position[bad].max())
        tried = len(np.unique(facts.position))
        yield Predicate(f"from position {least} on", _least("position", least), tried)
        yield Predicate(f"up to position {most}", _most("position", most), tried)
        yield Predicate(f"position {least} only", _is("position", least), tried)


def _stretch(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Between any two places: the least that can be said, so the last that is tried."""
    if bad.any():
        least, most = int(facts.position[bad].min()), int(facts.position[bad].max())
        yield Predicate(
            f"positions {least} to {most}",
            lambda facts: np.asarray((facts.position >= least) & (facts.position <= most)),
            len(np.unique(facts.position)) ** 2,
        )


FAMILIES: tuple[PredicateFamily, ...] = (
    _only_passes,
    _layers,
    _ends,
    _drafted,
    _thresholds,
    _experts,
    _parts,
    _behind,
    _periods,
    _caches,
    _anywhere,
    _tokens,
)
"""Simplest first: what several of them say alike is told by the first."""


def _nth(number: int) -> str:
    return f"{number}{'nd' if number % 10 == 2 and number % 100 != 12 else 'th'}"
