"""A condition of rows: its words, and where it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from parity.compare.facts import Facts


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


def within(name: str, least: float | None, most: float | None) -> Callable[[Facts], np.ndarray]:
    """Where a fact is known, and not beyond these."""

    def holds(facts: Facts) -> np.ndarray:
        values = facts.known(name)
        low, high = (-np.inf if least is None else least), (np.inf if most is None else most)
        return np.asarray((values >= 0) & (values >= low) & (values <= high))

    return holds


def remainder(name: str, period: int, least: int, most: int) -> Callable[[Facts], np.ndarray]:
    """Where a fact is known, and what is left of it by a period is not beyond these."""

    def holds(facts: Facts) -> np.ndarray:
        values = facts.known(name)
        return np.asarray((values >= 0) & (values % period >= least) & (values % period <= most))

    return holds
