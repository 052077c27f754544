"""Rows of a table or columns that are numbered otherwise: run by run each so many off, or left empty, or by lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

STEPS, RUNS = 8, 12
"""How many steps are tried, those that most have, and how many runs are told."""

LEAST = 8
"""Numbers that a rule of two of its own is read from."""

Step = int | None
"""How far off a run is; None where it holds zeros."""


@dataclass(frozen=True)
class Runs:
    """Numbers [n], ascending, in runs that are each so many off: (the first place, the last, the step)."""

    numbers: np.ndarray
    runs: tuple[tuple[int, int, Step], ...]

    @property
    def steps(self) -> list[Step]:
        """Of each number."""
        return [step for first, last, step in self.runs for _ in range(first, last + 1)]

    def said(self, what: str) -> str:
        """In words: `what` is what another number's is called."""
        told = [f"{self._span(first, last)}: {_by(step, what)}" for first, last, step in self.runs if step != 0]
        return ", ".join(told)

    def _span(self, first: int, last: int) -> str:
        low, high = self.numbers[first], self.numbers[last]
        return f"{low}" if low == high else f"{low} to {high}"


def _by(step: Step, what: str) -> str:
    if step is None:
        return "zeros"
    return f"{what} {abs(step)} {'before' if step < 0 else 'behind'}"


def steps_of(mine: np.ndarray, found: np.ndarray) -> list[int]:
    """The steps from numbers to those that are nearest to what they hold, that most have; 0 among them."""
    common = [step for step, _ in Counter((found - mine).tolist()).most_common(STEPS)]
    return list(dict.fromkeys([0, *common]))


def in_runs(numbers: np.ndarray, steps: Sequence[Step], costs: np.ndarray, dear: float) -> Runs | None:
    """The runs that cost least; None where they are many, or nothing is off.

    Args:
        numbers: int64 [n], ascending; alike ones are of one run.
        costs: float64 [n, steps], what a number's being off by a step leaves; infinite where there is no such number.
        dear: what another run costs.
    """
    best, came = costs[0].copy(), np.zeros(costs.shape, np.int64)
    for place in range(1, len(costs)):
        other = int(best.argmin())
        switch = best[other] + (dear if numbers[place] > numbers[place - 1] else np.inf)
        came[place] = np.where(best <= switch, np.arange(len(steps)), other)
        best = np.minimum(best, switch) + costs[place]
    which = [int(best.argmin())]
    for place in range(len(costs) - 1, 0, -1):
        which.append(int(came[place, which[-1]]))
    path = np.array(which[::-1])
    edges = [0, *(np.flatnonzero(np.diff(path)) + 1).tolist(), len(path)]
    runs = tuple((low, high - 1, steps[path[low]]) for low, high in pairwise(edges))
    off = any(step != 0 for *_, step in runs)
    return Runs(numbers, runs) if off and len(runs) <= RUNS and np.isfinite(best).any() else None


@dataclass(frozen=True)
class Lanes:
    """Numbers that are laid out lane by lane and counted run by run."""

    lanes: int
    run: int

    @classmethod
    def of(cls, mine: np.ndarray, theirs: np.ndarray, size: int) -> Lanes | None:
        """The rule by which numbers [n] below `size` become others; None where none has all of them."""
        if len(np.unique(mine)) < LEAST or (theirs < 0).any():
            return None
        tried = (cls(lanes, run) for lanes in range(2, size // 2 + 1) for run in {size // lanes, -(-size // lanes)})
        return next((one for one in tried if np.array_equal(one.becomes(mine), theirs)), None)

    def becomes(self, numbers: np.ndarray) -> np.ndarray:
        """The numbers [n] that stand in their places."""
        return np.asarray(numbers % self.lanes * self.run + numbers // self.lanes)

    def __str__(self) -> str:
        return f"{self.run} (i mod {self.lanes}) + i div {self.lanes}: by lanes, not in runs"


def by_lanes(mine: np.ndarray, theirs: np.ndarray, size: int) -> str:
    """That rule in words; '' where none has all of them."""
    lanes = Lanes.of(mine, theirs, size)
    return f"number i becomes {lanes}" if lanes else ""
