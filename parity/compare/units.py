"""Rows of stages, or their heads, side by side whatever stage they are of; and which of them are near each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from parity.compare.rows import StageRows, row_floors, stage_rows
from parity.golden.views import DumpView
from parity.stages import Named

RED = 3.0
"""Rows and heads beyond this multiple of their noise are wrong: the default policy's worst row. What is within it of
another row may hold that."""

FLOAT32 = 1e-4
"""A row of a float32 run beyond this relative error is wrong, as in the float32 policy: its floor is bfloat16's."""

NEAREST = 0.1
"""However wide its noise, a row that is 10 % off another one does not hold it: neighbours are that much alike."""

APART = 4.0
"""What a row holds is four times nearer to it, at least, than what belongs there: some rows are true in two places."""

VALUES = 2**25
"""Numbers of the golden that rows are compared with: 128 MB in float32. Stages beyond that are not searched."""

LARGEST = 1e15
"""What is beyond it holds no row of the golden, and its square no float32."""

PLACE = ("stage", "prompt", "round", "position", "index", "part")
"""Columns of `Units.labels`: the stage's number, the row's labels, its number in the pass, and its head or tap, -1 of a
whole row."""


@dataclass(frozen=True)
class Units:
    """Rows of stages, or equal parts of them: U in all, of D numbers.

    Attributes:
        values: [U, D].
        noise: relative error of the bfloat16 reference, [U].
        labels: int64 [U, 6], see `PLACE`.
        stages: names by number.
    """

    values: np.ndarray
    noise: np.ndarray
    labels: np.ndarray
    stages: tuple[str, ...]

    @classmethod
    def of(cls, stages: Sequence[tuple[StageRows, int]], side: str) -> Units:
        """Of the golden's or the device's rows, each stage's cut into so many parts."""
        values, noise, labels = [], [], []
        for number, (rows, parts) in enumerate(stages):
            shape = len(rows.golden) * parts, prod(rows.golden.shape[1:]) // parts
            flat = np.asarray(getattr(rows, side)).reshape(shape)
            values.append(flat if rows.floor is None else flat.astype(np.float32).clip(-LARGEST, LARGEST))
            floor = None if rows.floor is None else rows.floor.reshape(shape)
            noise.append(np.zeros(shape[0]) if floor is None else relative_errors(rows.golden.reshape(shape), floor))
            labels.append(_labels(rows, number, parts))
        names = tuple(rows.named.name for rows, _ in stages)
        return cls(np.concatenate(values), np.concatenate(noise), np.concatenate(labels), names)

    @cached_property
    def floors(self) -> np.ndarray:
        """Noise of each unit, [U], of a lucky one the typical unit's."""
        return row_floors(self.noise, np.zeros(len(self.noise), bool))

    def wrong(self, device: Units, precision: str) -> np.ndarray:
        """Which of the device's units are beyond the noise, or beyond float32's rounding: bool [U]."""
        if not self.noise.any():
            return np.asarray((self.values != device.values).any(axis=1))
        return wrong_rows(relative_errors(self.values, device.values), self.noise, precision)

    def near(self, given: np.ndarray, own: np.ndarray) -> Iterator[np.ndarray]:
        """Of each given row [B, D] the units within whose noise it is, far nearer than to what belongs there.

        Args:
            own: what belongs there, [B, D].
        """
        bound = np.minimum(RED * self.floors, NEAREST)
        sizes = np.linalg.norm(self.values.astype(np.float32), axis=1)
        many = max(1, 2**23 // max(len(sizes), 1))  # 64 MB of distances at a time
        for first in range(0, len(given), many):
            some = given[first : first + many]
            squares = (some**2).sum(axis=1)[:, None] + sizes**2 - 2 * some @ self.values.T
            screened = squares <= (2 * bound * sizes) ** 2 + 1e-5 * sizes**2  # in float32; then as they are
            for row, true, mask in zip(some, own[first : first + many], screened & (sizes > 0), strict=True):
                units = np.flatnonzero(mask)
                error = relative_errors(self.values[units], np.broadcast_to(row, self.values[units].shape))
                closer = error * sizes[units] <= np.linalg.norm(row - true) / APART
                yield units[(error <= bound[units]) & closer]

    def equal(self, given: np.ndarray) -> Iterator[np.ndarray]:
        """Of each given row [B, D] the units with the same numbers."""
        for row in given:
            yield np.flatnonzero((self.values == row).all(axis=1))


def relative_errors(golden: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Relative L2 of every row [R]; a row of zeros counts its error as it is."""
    golden, other = (side.reshape(len(side), prod(side.shape[1:])).astype(np.float64) for side in (golden, other))
    size = np.linalg.norm(golden, axis=1)
    return np.asarray(np.linalg.norm(other - golden, axis=1) / np.where(size > 0, size, 1.0))


def wrong_rows(error: np.ndarray, noise: np.ndarray, precision: str, share: float = 1.0) -> np.ndarray:
    """Which rows [R] are beyond their noise, or float32's rounding, or a share of that: bool [R]; errors relative."""
    floors = row_floors(noise, np.zeros(len(noise), bool))
    return np.asarray(error > share * (FLOAT32 if precision == "float32" else RED * floors))


def _labels(rows: StageRows, number: int, parts: int) -> np.ndarray:
    count = len(rows.prompt)
    edges = np.flatnonzero(np.diff(rows.prompt, prepend=-1) | np.diff(rows.round, prepend=-1))
    index = np.arange(count) - np.repeat(edges, np.diff(np.append(edges, count)))
    places = np.stack([np.full(count, number), rows.prompt, rows.round, rows.position, index], axis=1)
    part = np.tile(np.arange(parts) if parts > 1 else [-1], count)
    return np.column_stack([np.repeat(places, parts, axis=0), part])


def parts_of(golden: DumpView, rows: StageRows) -> int:
    """The heads of a stage, or the taps that it joins; 1 where its rows are one piece."""
    axes, shape = rows.named.stage.axes, rows.golden.shape
    if {"N", "G"} & set(axes) and len(shape) > 2:
        return int(shape[1])
    width = _hidden(golden) if axes[1:] == ("TH",) else 0
    return shape[1] // width if width and shape[1] % width == 0 else 1


def _hidden(golden: DumpView) -> int:
    """H, by the first row of any stage of the target that has it."""
    hidden = {name for name, named in golden.declared.items() if named.stage.axes == ("S", "H")}
    place = next((place for place in golden.rows if place[0] == "float32" and place[3] in hidden), None)
    tensor = golden.stored(*place) if place else None
    return 0 if tensor is None else int(tensor.shape[-1])


def alike(
    golden: DumpView, first: Named, shape: Iterable[int], width: int, mode: str
) -> Iterator[tuple[StageRows, int]]:
    """The golden's own rows of a stage, then of those that have rows, or heads, of so many numbers.

    Args:
        shape: of a row of the stage.
        mode: of the comparison, whose noise it is.
    """
    room, whole = VALUES, prod(shape) == width
    others = [named for named in golden.declared.values() if named.name != first.name and not named.stage.exact]
    for named in (first, *([] if first.stage.exact else others)):
        rows = stage_rows(golden, golden, named, device="float32", mode=mode)
        if rows is None:
            continue
        parts = prod(rows.golden.shape[1:]) // width if named == first or not whole else 1
        if parts * width != prod(rows.golden.shape[1:]) or (parts > 1 and parts != parts_of(golden, rows)):
            continue
        room -= rows.golden.size
        if room < 0:
            return
        yield rows, parts
