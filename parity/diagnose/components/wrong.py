"""The wrong rows of a stage: golden, device and what bfloat16 costs each; how much of the error a model explains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod, sqrt

import numpy as np

from parity.compare.relations import CLEARLY
from parity.compare.rows import HALF_ULP, StageRows
from parity.compare.units import FLOAT32, RED, relative_errors, wrong_rows

DOWN_TO_NOISE = 1.5
"""A model whose rest is within this multiple of the noise leaves nothing: the bound that separates pass from warn."""

NEAR, CLOSE = 0.95, 5.0
"""A reading that explains so much and leaves no more than this multiple of the noise is said, with what it leaves: a
device may do the same wrong thing otherwise at an edge."""

GAP, MOSTLY = 4, 0.7
"""Columns that may be right by chance between two wrong ones, and the share of a run that has to be wrong."""

RANGES = 4
"""Columns in more runs than these are wrong here and there, by chance and not by their number."""

FREEDOM = 0.34
"""A model with more numbers of its own than this share of what it explains would fit noise as well."""


FULL = 0.02
"""A factor this near to 0, 1 or 2 is that number: weights in bfloat16 and noise move a fitted one by less."""

HALF = 0.5
"""The least share of the error of rows that are wrong alone that an explanation of it has."""

NEARLY_ALL = 0.95
"""The share of elements or rows of which what their bits tell is true, where the others are exceptions: an element that
was rounded at the edge of a step. Where one of ten is something else, something else is wrong too."""

CERTAIN = 50.0
"""Squared standard errors by which what is faintly off in many rows has to be off."""

DEAR = 1e-3
"""Share of the error that each number of a reading's own has to earn."""


SURE = (True, 1 - 3 * DEAR)
"""What leaves nothing and is preferred so much: a further reading could gain no more than three numbers are worth."""


@dataclass(frozen=True)
class Component:
    """A part of a stage's computation that accounts for its error.

    `explained` is the share of the squared error of the wrong rows, `rest` what is left in x noise. Where bits or whole
    numbers tell there is no rest, and `explained` is the share of the elements, or rows, of which it is true. `where`
    says which rows are wrong, '' where all are or nothing tells; `numbers` are those of the reading's own.
    """

    says: str
    explained: float
    rest: float | None
    where: str = ""
    numbers: int = 0

    @property
    def whole(self) -> bool:
        """Whether nothing but noise is left, or where bits tell, no element or row."""
        return self.explained > NEARLY_ALL if self.rest is None else self.rest <= DOWN_TO_NOISE

    def __str__(self) -> str:
        rest = "" if self.rest is None else f": {self.explained:.2%} of the error, rest {self.rest:.2g}x noise"
        return f"{self.named}{rest}"

    @property
    def named(self) -> str:
        """What it is and where."""
        return f"{self.says}; {self.where}" if self.where else self.says


def best_of(found: Iterable[Component | None]) -> Component | None:
    """The reading that is chosen of several, none of them made behind one that is sure; None where there is none."""
    best: Component | None = None
    for one in filter(None, found):
        best = one if best is None or preferred(one) > preferred(best) else best
        if preferred(best) > SURE:
            break
    return best


def preferred(one: Component) -> tuple[bool, float]:
    """Larger for the reading that is chosen: one that leaves nothing, then what it explains, less for each number."""
    return one.whole, one.explained - one.numbers * DEAR


@dataclass(frozen=True)
class WrongRows:
    """The wrong rows of a stage [R], flattened to [R, C], and the columns [C] in which they are wrong.

    Attributes:
        golden, device: float64 [R, C].
        noise: what rounding costs an element of each row, [R, 1].
        tail: the shape of a row.
        numbers: of the rows in the stage, int64 [R].
        precision: the device's.
        every: all rows of the stage, right ones too; None where they are not known.
    """

    rows: StageRows
    golden: np.ndarray
    device: np.ndarray
    noise: np.ndarray
    tail: tuple[int, ...]
    columns: np.ndarray
    numbers: np.ndarray
    precision: str
    every: StageRows | None = None

    @classmethod
    def of(
        cls, rows: StageRows, precision: str, whole: bool = False, among: np.ndarray | None = None
    ) -> WrongRows | None:
        """Those of a stage's rows [R, ...]; None where there is none, or they hold what is no number.

        Args:
            whole: take all rows, wrong alone or not.
            among: bool [R], the rows that are asked; all where it is None.
        """
        if rows.floor is None or not len(rows.golden):
            return None
        floors = relative_errors(rows.golden, rows.floor)
        bad = wrong_rows(relative_errors(rows.golden, rows.device), floors, precision)
        bad |= whole
        bad &= True if among is None else among
        if not bad.any():
            return None
        some = rows.take(bad)
        golden, device = (side.reshape(len(side), -1).astype(np.float64) for side in (some.golden, some.device))
        if not (np.isfinite(golden).all() and np.isfinite(device).all()):
            return None
        least = FLOAT32 / RED if precision == "float32" else HALF_ULP
        typical = least if precision == "float32" else np.maximum(np.median(floors), least)
        sizes = [np.linalg.norm(side, axis=1, keepdims=True) / sqrt(golden.shape[1]) for side in (golden, device)]
        noise = np.maximum(typical * sizes[0], least * sizes[1])  # what is larger than it should be is rounded so
        noise = np.maximum(noise, np.finfo(np.float64).tiny)
        columns = np.ones(golden.shape[1], bool)
        numbers = np.flatnonzero(bad)
        return cls(some, golden, device, noise, rows.golden.shape[1:], columns, numbers, precision, rows).in_words()

    def at(self, places: np.ndarray) -> WrongRows | None:
        """The same beside those rows of the stage alone that are at these places, (round, position) [R, 2], in their
        order; None where there is none at one of them, or a wrong row at none."""
        if self.every is None:
            return None
        there = {place: row for row, place in enumerate(zip(self.every.round, self.every.position, strict=True))}
        rows = [there.get((round_, position), -1) for round_, position in places.tolist()]
        numbered = {row: number for number, row in enumerate(rows)}
        numbers = [numbered.get(row, -1) for row in self.numbers.tolist()]
        if min((*rows, *numbers)) < 0:
            return None
        return replace(self, numbers=np.array(numbers), every=self.every.take(np.array(rows)))

    def beside(self, step: int) -> np.ndarray:
        """The golden's rows so many behind each, of the same pass, [R, C]; its own where there is none."""
        if self.every is None:
            return self.golden
        there = np.clip(self.numbers + step, 0, len(self.every.golden) - 1)
        same = [getattr(self.every, of)[there] == getattr(self.rows, of) for of in ("prompt", "round")]
        there = np.where(same[0] & same[1], there, self.numbers)
        return self.every.golden[there].reshape(self.golden.shape).astype(np.float64)

    @property
    def passes(self) -> np.ndarray:
        """Which pass each row is of, counted from 0, int64 [R]."""
        return np.asarray(np.unique(self.rows.labels[:, :2], axis=0, return_inverse=True)[1].ravel())

    @classmethod
    def unclear(cls, rows: StageRows, precision: str) -> np.ndarray:
        """Rows of a stage that are neither wrong nor clearly right: bool [R]."""
        if rows.floor is None:
            return np.zeros(len(rows.golden), bool)
        error, floors = (relative_errors(rows.golden, side) for side in (rows.device, rows.floor))
        near, bad = (wrong_rows(error, floors, precision, share) for share in (CLEARLY, 1.0))
        return np.asarray(near & ~bad)

    def in_words(self) -> WrongRows:
        """The same in the columns that are wrong, where words have them."""
        wrong = _filled(np.sqrt(np.mean((self.error / self.noise) ** 2, axis=0)) > RED, self.tail)
        return replace(self, columns=wrong) if wrong.any() and ranges_of(wrong, self.tail) else self

    @cached_property
    def error(self) -> np.ndarray:
        """Device minus golden, [R, C]."""
        return np.asarray(self.device - self.golden)

    def judged(self, says: str, model: np.ndarray, numbers: int, freedom: float = FREEDOM) -> Component | None:
        """A model of the error [R, wrong columns] with so many numbers of its own; None where it explains nothing.

        Of an error of little more than noise a model that explains a tenth may leave no more than noise: that is none.
        """
        error = self.error[:, self.columns]
        if numbers > freedom * error.size:
            return None
        left = error - model
        total = float((error**2).sum())
        explained = 1 - float((left**2).sum()) / total if total else 0.0
        free = sqrt(1 - numbers / error.size)
        rest = float(np.sqrt(np.mean((left / self.noise) ** 2))) / free if error.size else inf
        if explained <= 0 or (rest <= DOWN_TO_NOISE and explained < HALF):
            return None
        return Component(says, explained, rest, numbers=numbers)

    @property
    def where(self) -> str:
        """The wrong columns in words, as the beginning of a sentence; '' where all are."""
        told = ranges_of(self.columns, self.tail)
        return f"{told}: " if told else ""


def _filled(columns: np.ndarray, tail: Sequence[int]) -> np.ndarray:
    """The same with the gaps that chance leaves: some columns of a wrong run are within their noise."""
    if len(tail) < 2 or not columns.any():
        return _without_gaps(columns)
    grid = columns.reshape(tail[0], prod(tail[1:]))
    block = np.outer(grid.any(axis=1), _without_gaps(np.asarray(grid.any(axis=0))))
    return block.ravel() if grid[block].mean() > MOSTLY else columns


def _without_gaps(columns: np.ndarray) -> np.ndarray:
    places = np.flatnonzero(columns)
    runs = np.split(places, np.flatnonzero(np.diff(places) > GAP) + 1) if len(places) else []
    filled = columns.copy()
    for run in runs:
        filled[run[0] : run[-1] + 1] |= len(run) > MOSTLY * (run[-1] - run[0] + 1)
    return filled


def ranges_of(columns: np.ndarray, tail: Sequence[int]) -> str:
    """Some columns of a row of this shape in words; '' where it is nearly all of them, or no words have them."""
    if columns.mean() > 0.95:
        return ""
    if len(tail) > 1:
        grid = columns.reshape(tail[0], prod(tail[1:]))
        heads, inner = np.asarray(grid.any(axis=1)), np.asarray(grid.any(axis=0))
        if grid[np.ix_(heads, inner)].mean() > 0.9:
            said = [
                "" if heads.all() else f"head {_numbers(heads)}",
                "" if inner.mean() > 0.95 else f"dimensions {_numbers(inner)} of {len(inner)}",
            ]
            return " of ".join(filter(None, reversed(said)))
    told = _numbers(columns)
    return told and f"columns {told} of {len(columns)}"


def _numbers(which: np.ndarray) -> str:
    """Numbers as a few ranges, or as a step; '' where they are neither."""
    places = np.flatnonzero(which)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    if len(runs) <= RANGES:
        return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    steps = set(np.diff(places).tolist())
    return f"{places[0]}, {places[1]}, ... {places[-1]}" if len(steps) == 1 else ""
