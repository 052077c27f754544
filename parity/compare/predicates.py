"""Conditions of rows: what may hold for the bad rows of a stage and for none of the clean ones, the simplest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from parity.compare.facts import Facts
from parity.compare.loads import Loads
from parity.compare.quantities import QUANTITIES, bounds_of
from parity.compare.siblings import LayerRule, layer_rules

PERIODS = tuple(2**power for power in range(1, 13))
"""Tiles and pages are powers of two."""

ODD = (3, 5, 6, 7, 9, 10, 12)
"""Other numbers of rows that a kernel may take at once: draft and bonus rows are K + 1."""

FITTING = 64
"""Out of how many a condition on a later pass' place in a tile counts as chosen: passes are few, and one tile fits."""

MISSED = 16
"""Rows of a tile of which all but the first may be wrong."""

NEAR = (0, -1, 1)
"""A bound that is off by one breaks one row before or behind the config's."""


@dataclass(frozen=True)
class Predicate:
    """A condition in words, and what says where it holds (bool [R] of the facts of any rows).

    Attributes:
        tried: out of how many it was chosen.
        behind: its words behind another one's, where they are not `says`.
        of: what it asks of: two that ask of the same differ in words more than in sense.
    """

    says: str
    holds: Callable[[Facts], np.ndarray]
    tried: int = 1
    behind: str = ""
    of: frozenset[str] = frozenset()

    def inside(self, other: Predicate) -> Predicate:
        """Where both hold."""
        first, second = (other, self) if self.behind and not other.behind else (self, other)
        says = f"{first.says}, {second.behind or f'of these {second.says}'}"
        holds = partial(_both, self.holds, other.holds)
        return Predicate(says, holds, self.tried * other.tried, of=self.of | other.of)


def _both(one: Callable[[Facts], np.ndarray], two: Callable[[Facts], np.ndarray], facts: Facts) -> np.ndarray:
    return np.asarray(one(facts) & two(facts))


PredicateFamily = Callable[[Facts, np.ndarray], Iterator[Predicate]]
"""From the facts and the bad rows [R]; where it takes a number from the bad rows, `tried` counts what it chose from."""


def alone(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Every condition of one fact, the simplest first: what several say alike is told by the first."""
    for of, family in FAMILIES:
        for predicate in family(facts, bad):
            yield predicate if predicate.of else replace(predicate, of=frozenset({of}))


def passes(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Prefill against the passes of later rounds."""
    later = {"target": "verify rows", "verify": "verify rows"}.get(facts.side, "rows of later rounds")
    yield Predicate("prefill rows only", lambda facts: facts.round == 0, behind="in prefill rows")
    yield Predicate(f"{later} only", lambda facts: facts.round > 0, behind=f"in {later}")


def layers(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Which layers, where the rows are of several."""
    if facts.layer is None or not bad.any():
        return
    every, told = np.unique(facts.layer), dict[tuple[bool, ...], int]()
    for rule in layer_rules(np.unique(facts.layer[bad]).tolist(), len(every)):
        which = tuple(rule.holds(every).tolist())
        if rule.tried <= told.setdefault(which, rule.tried):  # the same layers by more numbers say no more
            yield Predicate(rule.says, partial(_of_layers, rule), rule.tried, behind=rule.says)


def _of_layers(rule: LayerRule, facts: Facts) -> np.ndarray:
    return np.asarray(rule.holds(facts.known("layer")))


def _within(name: str, least: float | None, most: float | None) -> Callable[[Facts], np.ndarray]:
    """Where a fact is known, and not beyond these."""

    def holds(facts: Facts) -> np.ndarray:
        values = facts.known(name)
        low, high = (-np.inf if least is None else least), (np.inf if most is None else most)
        return np.asarray((values >= 0) & (values >= low) & (values <= high))

    return holds


def _rest(name: str, period: int, least: int, most: int) -> Callable[[Facts], np.ndarray]:
    def holds(facts: Facts) -> np.ndarray:
        values = facts.known(name)
        return np.asarray((values >= 0) & (values % period >= least) & (values % period <= most))

    return holds


def _ends(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """First and last rows."""
    yield Predicate("position 0 only", lambda facts: facts.position == 0)
    yield Predicate("row 0 of every pass", lambda facts: facts.index == 0)
    yield Predicate("the last row of every pass", lambda facts: facts.index == facts.count - 1)
    yield Predicate("every row of a pass but its first", lambda facts: facts.index > 0)
    yield Predicate("every row of a pass but its last", lambda facts: facts.index < facts.count - 1)
    yield Predicate("every position but 0", lambda facts: facts.position > 0)
    yield Predicate("row 0 of every later pass", lambda facts: facts.known("row") == 0)
    yield Predicate("the last row of every later pass", lambda facts: facts.known("ahead") == 0)
    yield Predicate("every row of a later pass but its first", lambda facts: facts.known("row") > 0)
    yield Predicate("every row of a later pass but its last", lambda facts: facts.known("ahead") > 0)


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


def _rewritten(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Rows where a rejected one was before them, and all others of later passes."""
    yield Predicate("rows at positions that an earlier pass had", lambda facts: facts.known("again") == 1)
    yield Predicate("rows of later passes at positions that none had before", lambda facts: facts.known("again") == 0)


def _thresholds(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """From a place that the config or the prompt knows on, or before it."""
    for says, off, number in named_places(facts):
        place = partial(place_of, off=off, number=number)
        where = says if number is None else f"{number + off} = {says}"
        yield Predicate(f"from {where} on", partial(_from, place=place))
        yield Predicate(f"before {where}", partial(_before, place=place))


def _powers(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """From a power of two on: where tiles, tables and pages end."""
    for power in (power for power in PERIODS if power <= facts.position.max(initial=0)):
        yield Predicate(f"from position {power} on", _within("position", power, None))


def named_places(facts: Facts) -> Iterator[tuple[str, int, int | None]]:
    """Places in the sequence with a name: the prompt's end (None), and the lengths of the config, one off included."""
    named: list[tuple[str, int | None]] = [("the prompt's end", None), *facts.lengths.items()]
    for off in NEAR:
        for name, number in named:
            yield name + (f" {'+' if off > 0 else '-'} {abs(off)}" if off else ""), off, number


def place_of(facts: Facts, off: int, number: int | None) -> np.ndarray | int:
    """Where a named place is in the sequence of each row: [R], or the same in all."""
    return (facts.prompts if number is None else number) + off


def _from(facts: Facts, place: Callable[[Facts], np.ndarray | int]) -> np.ndarray:
    return np.asarray(facts.position >= place(facts))


def _before(facts: Facts, place: Callable[[Facts], np.ndarray | int]) -> np.ndarray:
    return np.asarray(facts.position < place(facts))


def _experts(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    for expert in facts.experts:
        yield Predicate(f"expert {expert}'s rows", partial(_of_expert, expert=expert))
    yield Predicate("rows whose best expert has the highest number", partial(_best, name="highest"))
    yield Predicate("rows whose best expert has the lowest number", partial(_best, name="lowest"))


def _groups(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Experts of one rank or tile, or of several."""
    count = 1 + max(facts.experts, default=0)
    for size in (size for size in range(2, count) if count % size == 0):
        yield Predicate(f"rows whose experts are of one group of {size}", partial(_of_one_group, size=size, one=True))
        yield Predicate(f"rows with experts of several groups of {size}", partial(_of_one_group, size=size, one=False))


def _of_one_group(facts: Facts, size: int, one: bool) -> np.ndarray:
    high, low = (facts.known(name) for name in ("highest", "lowest"))
    return np.asarray((low >= 0) & ((high // size == low // size) == one))


def _best(facts: Facts, name: str) -> np.ndarray:
    best = facts.known("best")
    return np.asarray((best >= 0) & (best == facts.known(name)))


def _of_expert(facts: Facts, expert: int) -> np.ndarray:
    return facts.experts.get(expert, np.zeros(len(facts.prompt), bool))


def _runs(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """The first rows of an expert's further tiles."""
    most = int(facts.known("last_place").max(initial=0))
    for period in (period for period in PERIODS if 2 < period < most):
        says = f"rows that begin a further tile of {period} of the rows that an expert of theirs runs"
        yield Predicate(says, partial(_begins_tile, period=period))


def _begins_tile(facts: Facts, period: int) -> np.ndarray:
    places = Loads.of(facts.experts, facts.passes).places
    begins = [(place > period) & ((place - 1) % period == 0) for place in places]
    return np.any(begins, axis=0) if begins else np.zeros(len(facts.prompt), bool)


def _rounds(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Every other round."""
    for rest, says in ((1, "odd rounds only"), (0, "even rounds behind the prefill only")):
        yield Predicate(says, partial(_round_of, rest=rest))


def _round_of(facts: Facts, rest: int) -> np.ndarray:
    return np.asarray((facts.round > 0) & (facts.round % 2 == rest))


def _periods(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Every 2^n-th position and row of a pass, and the first or last positions of each 2^n."""
    for what, name in (("position", "position"), ("row of a pass", "index")):
        values = facts.known(name)
        for period in (period for period in PERIODS if period <= values.max(initial=0) and bad.any()):
            rests = values[bad] % period
            least, most = int(rests.min()), int(rests.max())
            if least == most:
                says = f"every {_nth(period)} {what}, from {least} on"
                yield Predicate(says, _rest(name, period, least, least), period)
            elif least > 0 and name == "index" and period <= MISSED:
                yield Predicate(
                    f"every row of a pass but each {_nth(period)}", _rest(name, period, 1, period - 1), period
                )
            elif name == "position" and least == 0 and most < period - 1:
                yield Predicate(
                    f"the first {most + 1} positions of each {period}", _rest(name, period, 0, most), period
                )
            elif name == "position" and most == period - 1 and least > 0:
                says = f"the last {period - least} positions of each {period}"
                yield Predicate(says, _rest(name, period, least, most), period)


def _odd_periods(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Every so many rows of a pass, of a number that is no power of two; every other token."""
    for name, says, periods in (("index", "every {} row of a pass, from {} on", ODD), ("token", "{1} token ids", (2,))):
        values = facts.known(name)
        for period in (period for period in periods if bad.any() and period <= values.max(initial=0)):
            rests = np.unique(values[bad] % period)
            if len(rests) == 1 and values[bad].min() >= 0:
                rest = int(rests[0])
                told = rest if name == "index" else ("even", "odd")[rest]
                yield Predicate(says.format(_nth(period), told), _rest(name, period, rest, rest), period * len(periods))


def _of_passes(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Where in a tile a pass begins or ends, or what it ends behind."""
    for period in (period for period in PERIODS if 2 < period <= facts.position.max(initial=0)):
        tile = f"a tile of {period}"
        for name, says in (("start", "begin"), ("end", "end")):
            for rest, where in ((0, "first"), (period - 1, "last")):
                told = f"later passes that {says} at the {where} position of {tile}"
                yield Predicate(told, _rest(name, period, rest, rest), FITTING)
        inside = f"later passes that begin inside {tile}"
        yield Predicate(inside, _rest("start", period, 1, period - 1), FITTING)
        over, behind = (partial(_crossing, period=period, behind=behind) for behind in (False, True))
        yield Predicate(f"later passes over the end of {tile}", over, FITTING)
        yield Predicate(f"rows behind the end of {tile} in later passes", behind, FITTING)
        left = partial(_behind_whole, period=period)
        yield Predicate(f"rows of later passes behind the sequence's last whole tile of {period}", left, FITTING)


def _crossing(facts: Facts, period: int, behind: bool) -> np.ndarray:
    start, there = facts.known("start"), facts.position if behind else facts.known("end")
    return np.asarray((start >= 0) & (start // period < there // period))


def _behind_whole(facts: Facts, period: int) -> np.ndarray:
    return np.asarray((facts.round > 0) & (facts.position >= (facts.known("end") + 1) // period * period))


def _tiles(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Behind the last whole tile of a prompt; of tiles that end alike the largest."""
    for period in (period for period in reversed(PERIODS) if period < facts.prompts.max(initial=0)):
        yield Predicate(f"behind the prompt's last whole tile of {period}", partial(_behind_tile, period=period))


def _behind_tile(facts: Facts, period: int) -> np.ndarray:
    start = facts.prompts // period * period
    return np.asarray((start > 0) & (facts.position >= start))


def _quantities(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """One value of a fact, from one on, up to one, and then between two."""
    found = [(quantity, bound) for quantity in QUANTITIES for bound in bounds_of(quantity, facts, bad)]
    for quantity, bound in sorted(found, key=lambda each: each[1].closed):
        holds = _within(quantity.fact, bound.least, bound.most)
        yield Predicate(bound.says, holds, bound.tried, of=frozenset({quantity.of or quantity.fact}))


FAMILIES: tuple[tuple[str, PredicateFamily], ...] = (
    ("pass", passes),
    ("layer", layers),
    ("row", _drafted),
    ("row", _ends),
    ("position", _thresholds),
    ("position", _powers),
    ("expert", _experts),
    ("expert", _groups),
    ("round", _rounds),
    ("position", _periods),
    ("position", _tiles),
    ("pass's place", _of_passes),
    ("row", _odd_periods),
    ("", _quantities),
    ("load", _runs),
    ("position", _rewritten),
)
"""What each asks of, and the families: what a program asks most often first."""


def _nth(number: int) -> str:
    ending = {2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (12, 13) else "th"
    return f"{number}{ending}"
