"""The simplest condition that separates the bad rows of a stage from the clean ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import log2

import numpy as np

from parity.compare.facts import Facts
from parity.compare.predicate import Predicate
from parity.compare.predicates import alone, layers, named_places, passes, place_of

Priced = tuple[float, Predicate]
"""A condition and its price in bits."""

Candidates = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Some conditions: the kinds that each joins, by number [m, 1 to 3], how many clean rows meet it and its price [m]."""

FEWEST = 3
"""Rows of a stage from which "every row" says something."""

FEW_ROWS = "too few rows"
"""How a relation begins that tells none."""

CLEARLY = 0.5
"""A row within its bound is clean, as far as a condition is looked for, where it is within half of it: what hardly
moves a row is not told from noise."""

BITS = 10.0
"""A condition among n tried is believed where chance picks such rows less than once in 2^10 n times."""

FURTHER = 5.0
"""A second condition beside the first, among n tried, where the two leave no clean row and chance picks such rows of
the first's less than once in 2^5 n times: which rows are bad is mostly said by then."""

MANY, MOST = 0.5, 0.8
"""The share of a condition's rows that are bad where it is told all the same: some are off by less than noise. The
second is for two together, none of which is a pass or a layer: among so many some share that much by chance."""

SOME = 0.1
"""The share of a condition's rows that are bad where no other condition is told."""

ALIKE = 2.0
"""Conditions of the same rows are told beside each other where one is chosen among up to 2^2 times as many."""

WORDINGS = 3
"""Conditions of the same rows that are kept, the simplest."""

AT_ONCE = 2**16
"""Clean rows that are multiplied at once."""

EXTENDED = 16
"""Of the pairs that say most, so many are asked with a third condition."""


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
    covering = Covering.of(bad, judged, facts)
    best = covering.best()
    if best is not None and best.excess >= 0:
        return best.says
    fitting = (found for found in covering.exact() if found.excess >= -BITS or len(found.parts) == 1)
    told = _edge(bad, judged, facts) or next((_too_few(count, all_, found) for found in fitting), "")
    return told or covering.among()


def _too_few(count: int, all_: int, found: Found) -> str:
    """What fits where chance may well have picked such rows."""
    told = f"{FEW_ROWS} ({count} bad of {all_}) to tell a condition"
    return f"{told}: {found.says} fits" if found.excess >= -BITS else told


def separating(bad: np.ndarray, judged: np.ndarray, facts: Facts) -> Iterator[tuple[Predicate, bool]]:
    """The conditions that hold for exactly the bad ones of the rows judged, the simplest first, each with whether
    chance would hardly pick such rows."""
    for found in Covering.of(bad, judged, facts).exact():
        yield from ((predicate, found.excess >= 0) for _, predicate in found.wordings)


@dataclass(frozen=True)
class Found:
    """A condition, or two or three together, that all bad rows meet.

    Attributes:
        parts: of each condition, what says the same of these rows, with its price, the cheapest first.
        bad, within: how many bad rows meet it, and how many clean ones.
        excess: the bits by which chance is less likely to pick such rows than its price asks for.
    """

    parts: tuple[Sequence[Priced], ...]
    bad: int
    within: int
    excess: float

    @property
    def wordings(self) -> list[Priced]:
        """What says the same of these rows, the cheapest first."""
        if len(self.parts) == 1:
            return [*self.parts[0]]
        joined = [(sum(price for price, _ in each), _inside(each)) for each in product(*self.parts)]
        return sorted(joined, key=lambda priced: priced[0])

    @property
    def says(self) -> str:
        """In words: with the share of its rows that are bad, and with what nothing tells apart from it."""
        (price, first), *others = self.wordings
        share = f": {self.bad} of {self.bad + self.within} rows, and no other" if self.within else ""
        alike = [other.says for paid, other in others if paid <= price + ALIKE and other.of != first.of]
        return first.says + share + (f" (the same rows: {'; '.join(alike)})" if alike else "")


@dataclass(frozen=True)
class Covering:
    """The conditions that hold for every bad row, n of different rows, every two of these together, and some threes.

    Attributes:
        kinds: those of the same rows, with the price of each: the bits by which chance has to be less likely to pick
            such rows. log2 of how many conditions come before it and of how many values it had, and `BITS`.
        clean: bool [n, R']: where they hold among the clean rows.
        bad: how many rows are bad.
    """

    kinds: list[list[Priced]]
    clean: np.ndarray
    bad: int

    @classmethod
    def of(cls, bad: np.ndarray, judged: np.ndarray, facts: Facts) -> Covering:
        """Those of the rows judged; bool [R] each."""
        wrong, clean = bad & judged, ~bad & judged
        kinds: dict[bytes, list[Priced]] = {}
        rows: dict[bytes, np.ndarray] = {}
        for number, predicate in enumerate(_predicates(facts, wrong), 1):
            held = predicate.holds(facts)
            if held[wrong].all() and not held[clean].all():
                key = np.packbits(held[clean]).tobytes()
                kinds.setdefault(key, []).append((BITS + log2(number * predicate.tried), predicate))
                rows[key] = held[clean]
        cheapest = [sorted(kind, key=lambda priced: priced[0])[:WORDINGS] for kind in kinds.values()]
        shape = len(rows), int(clean.sum())
        return cls(cheapest, np.array([*rows.values()], bool).reshape(shape), int(wrong.sum()))

    def exact(self) -> Iterator[Found]:
        """What no clean row meets, the cheapest first."""
        fitting = [
            (float(price), candidates, each)
            for candidates in (self._alone, self._together, self._extended)
            for each, (within, price) in enumerate(zip(*candidates[1:], strict=True))
            if not within
        ]
        for _, candidates, each in sorted(fitting, key=lambda found: found[0]):
            yield self._found(candidates, each)

    def best(self) -> Found | None:
        """The one, two or three that say most about which rows are bad, of those in which most rows are."""
        found = []
        for candidates in (self._alone, self._together, self._extended):
            which, within, price = candidates
            share = np.where(self._plain[which].any(axis=1) | (which.shape[1] == 1), MANY, MOST)
            gain = np.where(self.bad > share * (self.bad + within), self._surprise[within] - price, -np.inf)
            if gain.size and gain.max() > -np.inf:
                found.append(self._found(candidates, int(gain.argmax())))
        return max(found, key=lambda each: each.excess, default=None)

    def among(self) -> str:
        """The condition alone that says most, where most of its rows are clean: what is wrong moves some of them by no
        more than noise, or asks for more than is known of them. '' where chance may have picked such rows."""
        _, within, price = self._alone
        gain = self._surprise[within] - price
        if not gain.size or gain.max() < 0 or self.bad < SOME * (self.bad + within[gain.argmax()]):
            return ""
        (_, first), *_ = self.kinds[int(gain.argmax())]
        return f"among {first.says}: {self.bad} of {self.bad + int(within[gain.argmax()])} rows, and no other"

    def _found(self, candidates: Candidates, each: int) -> Found:
        which, within, price = (part[each] for part in candidates)
        excess = float(self._surprise[within] - price)
        return Found(tuple(self.kinds[int(kind)] for kind in which), self.bad, int(within), excess)

    @cached_property
    def _surprise(self) -> np.ndarray:
        """By the clean rows that a condition holds for, the bits by which it makes the bad rows more likely."""
        factorials = np.concatenate([[0.0], np.cumsum(np.log2(np.arange(1, self.bad + self.clean.shape[1] + 1)))])
        ways = factorials[self.bad :] - factorials[self.bad] - factorials[: self.clean.shape[1] + 1]
        return np.asarray(ways[-1] - ways)

    @cached_property
    def _price(self) -> np.ndarray:
        return np.array([kind[0][0] for kind in self.kinds])

    @cached_property
    def _plain(self) -> np.ndarray:
        """Which are passes or layers: bool [n]."""
        return np.array([bool(kind[0][1].behind) for kind in self.kinds])

    @cached_property
    def _alone(self) -> Candidates:
        return np.arange(len(self.kinds))[:, None], self.clean.sum(axis=1), self._price

    @cached_property
    def _together(self) -> Candidates:
        count = len(self.kinds)
        within = np.zeros((count, count), np.int64)
        for begin in range(0, self.clean.shape[1], AT_ONCE):
            part = self.clean[:, begin : begin + AT_ONCE].astype(np.float32)
            within += (part @ part.T).astype(np.int64)
        one, two = np.triu_indices(count, 1)
        met = within[one, two]
        price = self._price[one] + self._price[two] - np.where(met == 0, BITS - FURTHER, 0)
        return np.stack([one, two], axis=1), met, price

    @cached_property
    def _extended(self) -> Candidates:
        """The pairs that say most, each with every third condition."""
        pairs, within, price = self._together
        leading = np.argsort(price - self._surprise[within], kind="stable")[:EXTENDED]
        leading = leading[within[leading] > 0]
        count = len(self.kinds)
        which = np.column_stack([np.repeat(pairs[leading], count, axis=0), np.tile(np.arange(count), len(leading))])
        met = np.zeros((len(leading), count), np.int64)
        for row, (one, two) in enumerate(pairs[leading]):
            met[row] = (self.clean[one] & self.clean[two] & self.clean).sum(axis=1)
        further = np.where(met == 0, FURTHER, BITS) - BITS
        return which, met.ravel(), (price[leading][:, None] + self._price + further).ravel()


def _inside(each: Sequence[Priced]) -> Predicate:
    """Where all hold."""
    _, joined = each[0]
    for _, further in each[1:]:
        joined = joined.inside(further)
    return joined


def _predicates(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Every condition alone, then the passes of some layers."""
    yield from alone(facts, bad)
    for one in passes(facts, bad):
        yield from (one.inside(layer) for layer in layers(facts, bad))


def _edge(bad: np.ndarray, judged: np.ndarray, facts: Facts) -> str:
    """A place of the config before which no row is bad, and that the first bad row sits on."""
    first = int(facts.position[bad & judged].min())
    behind = judged & (facts.position >= first)
    chance = int(bad[judged].sum()) * log2(judged.sum() / behind.sum())
    named = [says for says, off, number in named_places(facts) if np.all(place_of(facts, off, number) == first)]
    if chance < BITS or not named:
        return ""
    return f"none before {first} = {named[0]}, {int((bad & judged).sum())} of {int(behind.sum())} rows from there on"
