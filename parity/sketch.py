"""Sketches: of a row of n numbers N seeded random sums, its norm and its plain sum, from which errors are estimated.

With s a vector of random signs, (s·e)² has the mean ||e||², whatever e is, and a variance of 2 (||e||⁴ - Σ e⁴), at most
that of a Gaussian s, for which N of them average to ||e||² chi²(N) / N. A sum is linear, so the sketch of an error is
the difference of two sketches. Signs are bits of Philox, counted by sketch number: the same on every machine, for any
number of rows; the first n' of a row of n are those of a row of n', the first N' sums those of a sketch of N' numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

EXTRA = 2
"""Numbers of a sketched row beside its N sums: norm and plain sum, both exact."""

BITS = 64
CHUNK = 1 << 22
"""Elements that are widened to float64 at a time."""


@lru_cache(maxsize=64)
def projection(seed: int, count: int, width: int) -> Floats:
    """What a row is multiplied with, [width, count + 1]: `count` columns of signs, and one of ones; read-only."""
    made = np.ones((width, count + 1), np.float32)
    for number in range(count):
        made[:, number] = _signs(seed, number, width)
    made.flags.writeable = False
    return made


def _signs(seed: int, number: int, width: int) -> Floats:
    """The signs of one sum: bit 0 of word 0 first."""
    from numpy.random import Philox

    words = Philox(key=seed, counter=[0, 0, number, 0]).random_raw(-(-width // BITS))
    bits = (words[:, None] >> np.arange(BITS, dtype=np.uint64)) & np.uint64(1)
    return 1.0 - 2.0 * bits.reshape(-1)[:width].astype(np.float32)


@dataclass(frozen=True, eq=False)
class Sketched:
    """Sketched rows, and what they are of.

    Attributes:
        numbers: float32 [R, N + 2]: the sums, the norm, the plain sum.
        shape, dtype: of the tensor; R is the length of its first axis.
    """

    numbers: Floats
    shape: tuple[int, ...]
    dtype: str


def sketch(rows: NDArray[Any], count: int, seed: int) -> Floats:
    """Sketch rows [R, ...] on the host, summed in float64: [R, count + 2]. What is not finite stays so."""
    flat = rows.reshape(len(rows), prod(rows.shape[1:]))
    made = np.empty((len(flat), count + EXTRA), np.float32)
    table = projection(seed, count, flat.shape[1]).astype(np.float64)
    step = max(CHUNK // max(flat.shape[1], 1), 1)
    for first in range(0, len(flat), step):
        part = flat[first : first + step].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            made[first : first + step] = joined(part @ table, np.square(part).sum(axis=1))
    return made


def joined(products: NDArray[Any], squares: NDArray[Any]) -> Floats:
    """Sketched rows out of the products with `projection`, [R, count + 1], and the sums of squares, [R]."""
    products, norm = np.asarray(products), np.sqrt(np.asarray(squares, np.float64))
    return np.concatenate([products[:, :-1], norm[:, None], products[:, -1:]], axis=1).astype(np.float32)
