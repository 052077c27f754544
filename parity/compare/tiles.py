"""Conditions on tiles, pages and whatever else comes round: where in one of so many rows a row or a pass stands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from parity.compare.facts import Facts
from parity.compare.loads import Loads
from parity.compare.predicate import Predicate, remainder, within

PERIODS = tuple(2**power for power in range(1, 13))
"""Tiles and pages are powers of two."""

ODD = (3, 5, 6, 7, 9, 10, 12)
"""Other numbers of rows that a kernel may take at once: draft and bonus rows are K + 1."""

FITTING = 64
"""Out of how many a condition on a later pass' place in a tile counts as chosen: passes are few, and one tile fits."""

MISSED = 16
"""Rows of a tile of which all but the first may be wrong."""


def powers(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """From a power of two on: where tiles, tables and pages end."""
    for power in (power for power in PERIODS if power <= facts.position.max(initial=0)):
        yield Predicate(f"from position {power} on", within("position", power, None))


def runs(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """The first rows of an expert's further tiles."""
    most = int(facts.known("last_place").max(initial=0))
    for period in (period for period in PERIODS if 2 < period < most):
        says = f"rows that begin a further tile of {period} of the rows that an expert of theirs runs"
        yield Predicate(says, partial(_begins_tile, period=period))


def _begins_tile(facts: Facts, period: int) -> np.ndarray:
    places = Loads.of(facts.experts, facts.passes).places
    begins = [(place > period) & ((place - 1) % period == 0) for place in places]
    return np.any(begins, axis=0) if begins else np.zeros(len(facts.prompt), bool)


def periods(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Every 2^n-th position and row of a pass, and the first or last positions of each 2^n."""
    for what, name in (("position", "position"), ("row of a pass", "index")):
        values = facts.known(name)
        for period in (period for period in PERIODS if period <= values.max(initial=0) and bad.any()):
            rests = values[bad] % period
            least, most = int(rests.min()), int(rests.max())
            if least == most:
                says = f"every {nth(period)} {what}, from {least} on"
                yield Predicate(says, remainder(name, period, least, least), period)
            elif least > 0 and name == "index" and period <= MISSED:
                yield Predicate(
                    f"every row of a pass but each {nth(period)}", remainder(name, period, 1, period - 1), period
                )
            elif name == "position" and least == 0 and most < period - 1:
                yield Predicate(
                    f"the first {most + 1} positions of each {period}", remainder(name, period, 0, most), period
                )
            elif name == "position" and most == period - 1 and least > 0:
                says = f"the last {period - least} positions of each {period}"
                yield Predicate(says, remainder(name, period, least, most), period)


def odd_periods(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Every so many rows of a pass, of a number that is no power of two; every other token."""
    for name, says, periods in (("index", "every {} row of a pass, from {} on", ODD), ("token", "{1} token ids", (2,))):
        values = facts.known(name)
        for period in (period for period in periods if bad.any() and period <= values.max(initial=0)):
            rests = np.unique(values[bad] % period)
            if len(rests) == 1 and values[bad].min() >= 0:
                rest = int(rests[0])
                told = rest if name == "index" else ("even", "odd")[rest]
                yield Predicate(
                    says.format(nth(period), told), remainder(name, period, rest, rest), period * len(periods)
                )


def of_passes(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Where in a tile a pass begins or ends, or what it ends behind."""
    for period in (period for period in PERIODS if 2 < period <= facts.position.max(initial=0)):
        tile = f"a tile of {period}"
        for name, says in (("start", "begin"), ("end", "end")):
            for rest, where in ((0, "first"), (period - 1, "last")):
                told = f"later passes that {says} at the {where} position of {tile}"
                yield Predicate(told, remainder(name, period, rest, rest), FITTING)
        inside = f"later passes that begin inside {tile}"
        yield Predicate(inside, remainder("start", period, 1, period - 1), FITTING)
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


def prompt_tiles(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Behind the last whole tile of a prompt; of tiles that end alike the largest."""
    for period in (period for period in reversed(PERIODS) if period < facts.prompts.max(initial=0)):
        yield Predicate(f"behind the prompt's last whole tile of {period}", partial(_behind_tile, period=period))


def _behind_tile(facts: Facts, period: int) -> np.ndarray:
    start = facts.prompts // period * period
    return np.asarray((start > 0) & (facts.position >= start))


def nth(number: int) -> str:
    """A number as an ordinal."""
    ending = {2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (12, 13) else "th"
    return f"{number}{ending}"
