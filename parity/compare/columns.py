"""Columns of a stage: an error that many rows have in one place, which within each row is noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity.compare.rows import NOISY, StageRows, row_floors

LEAST_ROWS = 8
"""Rows from which a column is more than its elements, which `largest` bounds one by one."""

CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class ColumnErrors:
    """Errors by column [C], over the rows that count, in x noise.

    An element's error is taken over its row's RMS, and a column's is the root mean square of these without the largest
    one: an element alone is `largest`'s. The noise is the floor's column, or the noisiest tenth's of the stage, or half
    a ULP, whichever is largest.

    Attributes:
        ratio: float64 [C].
        noise: float64 [C], over the row's RMS; ones where the figures are plain ones. Both are zeros for fewer than
            `LEAST_ROWS` rows.
    """

    ratio: np.ndarray
    noise: np.ndarray

    @classmethod
    def of(cls, rows: StageRows, keep: np.ndarray, unit: str) -> ColumnErrors:
        """Of the rows [R] (bool) that count, in this unit (noise or relative); what is not finite counts as equal."""
        golden, device = _flat(rows.golden), _flat(rows.device)
        noise = np.ones(golden.shape[1])
        if keep.sum() < LEAST_ROWS:
            return cls(np.zeros(len(noise)), np.zeros(len(noise)))
        if unit == "noise":
            own = _root_mean_squares(golden, _flat(rows.noise_floor), keep)
            noise = row_floors(own, np.zeros(len(own), bool), NOISY)
        return cls(_root_mean_squares(golden, device, keep) / noise, noise)

    @property
    def worst(self) -> float:
        """The worst column's error in x noise."""
        return float(self.ratio.max(initial=0.0))

    def bad(self, rows: StageRows, keep: np.ndarray, bound: float) -> np.ndarray:
        """Rows [R] (bool) that count and are further off in the worst column than this multiple of its noise."""
        column = int(self.ratio.argmax())
        golden, device = (_flat(side)[:, column].astype(np.float64) for side in (rows.golden, rows.device))
        size = np.sqrt(_mean_squares(_flat(rows.golden)))
        return np.asarray(keep & (np.abs(device - golden) > bound * self.noise[column] * size))

    def place(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The worst column's index within a row of this shape."""
        return tuple(int(number) for number in np.unravel_index(int(self.ratio.argmax()), shape))


def _flat(side: np.ndarray) -> np.ndarray:
    return side.reshape(len(side), -1)


def _mean_squares(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("rc,rc->r", rows, rows, dtype=np.float64) / rows.shape[1])


def _root_mean_squares(golden: np.ndarray, other: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Each column's RMS error [C] over the golden row's RMS, without its largest element."""
    total, largest = np.zeros((2, golden.shape[1]))
    step = max(CHUNK // golden.shape[1], 1)
    for start in range(0, len(golden), step):
        part = slice(start, start + step)
        true = golden[part].astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            squares = np.square(other[part].astype(np.float32) - true)
        size = _mean_squares(np.where(np.isfinite(true), true, 0))
        squares *= np.divide(keep[part], size, out=np.zeros(len(size)), where=size > 0)[:, None]
        squares[~np.isfinite(squares)] = 0
        total += squares.sum(axis=0, dtype=np.float64)
        np.maximum(largest, squares.max(axis=0, initial=0), out=largest)
    return np.asarray(np.sqrt(np.maximum(total - largest, 0) / (int(keep.sum()) - 1)))
