"""Conditions of rows: what may hold for the bad rows of a stage and for none of the clean ones, the simplest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from parity.compare import tiles
from parity.compare.facts import Facts
from parity.compare.predicate import Predicate, PredicateFamily, within
from parity.compare.quantities import QUANTITIES, bounds_of
from parity.compare.siblings import LayerRule, layer_rules

ROUNDS = (3, 4, 5, 8)
"""Rounds after which something may come again: buffers that are taken in turn."""

NEAR = (0, -1, 1)
"""A bound that is off by one breaks one row before or behind the config's."""


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


def _repeated(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Choices of the id that the row before of the pass has, or of another one."""
    if (facts.known("repeats") >= 0).any():
        yield Predicate("rows whose id is that of the row before", lambda facts: facts.known("repeats") == 1)
        yield Predicate("rows whose id is another than the row before's", lambda facts: facts.known("repeats") == 0)


def _rewritten(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Rows where a rejected one was before them, and all others of later passes."""
    yield Predicate("rows at positions that an earlier pass had", lambda facts: facts.known("again") == 1)
    yield Predicate("rows of later passes at positions that none had before", lambda facts: facts.known("again") == 0)


def _sized(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Passes of the size of the one before: what was kept for a shape is taken again."""
    if (facts.known("alike") == 1).any():
        yield Predicate("later passes of as many rows as the one before", lambda facts: facts.known("alike") == 1)
        yield Predicate("later passes of other sizes than the one before", lambda facts: facts.known("alike") == 0)


def _thresholds(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """From a place that the config or the prompt knows on, or before it."""
    for says, off, number in named_places(facts):
        place = partial(place_of, off=off, number=number)
        where = says if number is None else f"{number + off} = {says}"
        yield Predicate(f"from {where} on", partial(_from, place=place))
        yield Predicate(f"before {where}", partial(_before, place=place))


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


def _rounds(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Every other round."""
    for rest, says in ((1, "odd rounds only"), (0, "even rounds behind the prefill only")):
        yield Predicate(says, partial(_round_of, period=2, rest=rest))


def _rounds_by_turns(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Every third, fourth or further round, where several are bad."""
    rounds = np.unique(facts.round[bad])
    for period in ROUNDS if len(rounds) > 1 else ():
        rests = np.unique(rounds % period)
        if len(rests) == 1:
            rest = int(rests[0])
            says = f"every {tiles.nth(period)} round, from {rest or period} on"
            yield Predicate(says, partial(_round_of, period=period, rest=rest), sum(ROUNDS))


def _round_of(facts: Facts, period: int, rest: int) -> np.ndarray:
    return np.asarray((facts.round > 0) & (facts.round % period == rest))


def _quantities(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """One value of a fact, from one on, up to one, and then between two."""
    found = [(quantity, bound) for quantity in QUANTITIES for bound in bounds_of(quantity, facts, bad)]
    for quantity, bound in sorted(found, key=lambda each: each[1].closed):
        holds = within(quantity.fact, bound.least, bound.most)
        yield Predicate(bound.says, holds, bound.tried, of=frozenset({quantity.of or quantity.fact}))


FAMILIES: tuple[tuple[str, PredicateFamily], ...] = (
    ("pass", passes),
    ("layer", layers),
    ("row", _drafted),
    ("row", _ends),
    ("position", _thresholds),
    ("position", tiles.powers),
    ("expert", _experts),
    ("expert", _groups),
    ("round", _rounds),
    ("position", tiles.periods),
    ("position", tiles.prompt_tiles),
    ("pass's place", tiles.of_passes),
    ("row", tiles.odd_periods),
    ("", _quantities),
    ("load", tiles.runs),
    ("position", _rewritten),
    ("due", _repeated),
    ("pass", _sized),
    ("round", _rounds_by_turns),
)
"""What each asks of, and the families: what a program asks most often first."""
