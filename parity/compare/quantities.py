"""Facts of rows that are numbers, and how a bound on each is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from parity.compare.facts import Facts


def _drafts(number: float) -> str:
    return {0: "nothing", 1: "one draft"}.get(int(number), f"{int(number)} drafts")


def _whole(number: float) -> str:
    return str(int(number))


def _less(number: float) -> str:
    return str(int(number) - 1)


def _rows(number: float) -> str:
    return "1 row" if number == 1 else f"{int(number)} rows"


def _short(number: float) -> str:
    return f"{number:.4g}"


@dataclass(frozen=True)
class Quantity:
    """A fact of rows, and the words for one value of it, from one on, up to one, and between two; '' for none.

    Attributes:
        fact: the name of numbers [R] that `Facts` knows; what is below zero is not known.
        number: how a value is written.
        of: what a predicate about it asks of, where that is not the fact alone.
        dear: how many times as dear as another it is: one that is met less often.
    """

    fact: str
    one: str = ""
    least: str = ""
    most: str = ""
    between: str = ""
    number: Callable[[float], str] = _whole
    of: str = ""
    dear: int = 1


@dataclass(frozen=True)
class QuantityBound:
    """Values of a quantity in words, from `least` to `most`, either of which may be open; out of so many choices."""

    says: str
    least: float | None
    most: float | None
    tried: int

    @property
    def closed(self) -> bool:
        """Whether it is between two values."""
        return self.least is not None and self.most is not None and self.least < self.most


def bounds_of(quantity: Quantity, facts: Facts, bad: np.ndarray) -> Iterator[QuantityBound]:
    """The tightest bounds that all bad rows (bool [R]) are within; none where one is not known, or all are within."""
    values = facts.known(quantity.fact)
    if not bad.any() or not values[bad].min() >= 0:  # NaN, as of scores that are infinite, is not known either
        return
    every = np.unique(values[values >= 0])
    least, most, tried = values[bad].min(), values[bad].max(), len(every) * quantity.dear
    low, high = quantity.number(least), quantity.number(most)
    if least == most and quantity.one:
        yield QuantityBound(quantity.one.format(low), least, most, tried)
    if quantity.least and least > every[0]:
        yield QuantityBound(quantity.least.format(low), least, None, tried)
    if quantity.most and most < every[-1] and (most > 0 or not quantity.one):  # nothing is fewer than none
        yield QuantityBound(quantity.most.format(high), None, most, tried)
    if every[0] < least < most < every[-1] and quantity.between:
        yield QuantityBound(quantity.between.format(low, high), least, most, tried**2)


def _counted(what: str, fact: str, of: str = "", number: Callable[[float], str] = _whole) -> Quantity:
    """So many of something, or more, or fewer."""
    return Quantity(fact, what, f"{what} or more", f"{what} or fewer", number=number, of=of)


QUANTITIES = (
    Quantity("prompt", "prompt {0} only", "from prompt {0} on"),
    Quantity("prompts", "", "prompts of {0} tokens or more", "prompts of {0} tokens or fewer", of="prompt"),
    Quantity("round", "round {0} only", "from round {0} on", "up to round {0}", "rounds {0} to {1}"),
    _counted("rounds behind one that accepted {0}", "accepted", number=_drafts),
    _counted("rounds that accept {0}", "accepts", number=_drafts),
    _counted("passes with {0} cached rows", "cached"),
    Quantity("position", "position {0} only", "from position {0} on", "up to position {0}", "positions {0} to {1}"),
    Quantity(
        "behind",
        least="rows of the prefill with {0} or more behind them",
        most="rows of the prefill with {0} or fewer behind them",
        of="position",
        dear=8,
    ),
    Quantity("token", "token {0} only", "token ids from {0} on", "token ids up to {0}", "token ids {0} to {1}"),
    Quantity("own", "rows of token {0} only", "rows of token ids from {0} on", "rows of token ids up to {0}"),
    Quantity(
        "row",
        "row {0} of every later pass",
        "rows of later passes from row {0} on",
        "rows of later passes up to row {0}",
        "rows {0} to {1} of every later pass",
    ),
    Quantity(
        "ahead",
        "row {0} before the last of every later pass",
        most="the last row of every later pass and {0} before",
        of="row",
    ),
    _counted("passes of {0} committed rows", "committed", of="accepted"),
    Quantity("count", least="passes of {0} rows or more", most="passes of {0} rows or fewer", of="row"),
    Quantity("left", "rounds with {0} tokens left", most="rounds with {0} tokens left or fewer"),
    Quantity("due", "id {0} is due", "ids from {0} on are due", "ids up to {0} are due", "ids {0} to {1} are due"),
    Quantity("best", "rows whose best expert is {0}", of="expert"),
    Quantity("highest", least="rows with an expert from {0} on", of="expert"),
    Quantity("lowest", most="rows with an expert up to {0}", of="expert"),
    Quantity(
        "least_share",
        "",
        "rows of routing weights of {0} or more",
        "rows with a routing weight up to {0}",
        number=_short,
    ),
    Quantity("largest", least="rows with an element of {0} or more", number=_short),
    Quantity(
        "least_load",
        "rows with an expert that runs {0} of the pass",
        most="rows with an expert that runs {0} of the pass or fewer",
        number=_rows,
        of="load",
    ),
    Quantity("most_load", least="rows with an expert that runs {0} of the pass or more", number=_rows, of="load"),
    Quantity("first_place", most="rows among the first {0} of the pass that an expert of theirs runs", of="load"),
    Quantity(
        "last_place",
        least="rows behind the first {0} of the pass that an expert of theirs runs",
        number=_less,
        of="load",
    ),
)
"""What a program asks most often first."""
