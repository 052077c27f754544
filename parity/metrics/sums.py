"""What one pass leaves behind, and the pass in plain NumPy.

Every kernel fills a `Partial` for one tile of a pair; partials of different tiles add up. With g the
golden, d the device and e = d - g (all float64, finite pairs only), the row table holds

    N = count, G = sum g, E = sum e, AE = sum |e|, EE = sum e*e, GG = sum g*g, GE = sum g*e, MAX = max |e|.

The NumPy pass takes every float dtype and costs no start-up: for small pairs and as a fallback.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity.arrays import Array, DType
from parity.metrics.dtypes import distance, ordinals

N, G, E, AE, EE, GG, GE, MAX = range(8)
SUMS = slice(0, MAX)
WIDTH = 8

GOLDEN_NAN, GOLDEN_INF, DEVICE_NAN, DEVICE_INF, MISMATCHES, FIRST, ULP_MAX, WORST = range(8)
COUNTED = [GOLDEN_NAN, GOLDEN_INF, DEVICE_NAN, DEVICE_INF, MISMATCHES]

BUCKETS = 65
"""Histogram length: bucket k counts ULP distances of bit length k, that is 0, 1, 2-3, 4-7, 8-15, ..."""

_BOUNDS = np.array([0] + [2**k - 1 for k in range(1, BUCKETS)], np.uint64)
"""Largest distance of every bucket."""


@dataclass
class Partial:
    """Sums of one tile, or of all tiles so far.

    Attributes:
        rows: float64 [R, WIDTH], one line per row.
        ulps: int64 [BUCKETS]; all 0 where ULPs are not counted.
        counts: int64 [8]; `FIRST` is the flat index row * C + column of the first non-finite mismatch,
            `WORST` that of the largest |e|; -1 where there is none.
    """

    rows: Array
    ulps: Array
    counts: Array
    largest: float = 0.0

    @classmethod
    def empty(cls, rows: int) -> Partial:
        """No element seen yet, for `rows` rows."""
        counts = np.zeros(8, np.int64)
        counts[[FIRST, WORST]] = -1
        return cls(np.zeros((rows, WIDTH)), np.zeros(BUCKETS, np.int64), counts)

    def add(self, tile: Partial, row: int, column: int, columns: int) -> None:
        """Add a tile whose first element is (`row`, `column`) of a pair with `columns` columns."""
        start = row * columns + column
        self._add_worst(tile, start)
        into = self.rows[row : row + len(tile.rows)]
        np.maximum(into[:, MAX], tile.rows[:, MAX], out=into[:, MAX])
        into[:, SUMS] += tile.rows[:, SUMS]
        self.ulps += tile.ulps
        self.counts[COUNTED] += tile.counts[COUNTED]
        self.counts[ULP_MAX] = max(self.counts[ULP_MAX], tile.counts[ULP_MAX])
        first = start + tile.counts[FIRST]
        if tile.counts[FIRST] >= 0 and (self.counts[FIRST] < 0 or first < self.counts[FIRST]):
            self.counts[FIRST] = first

    def _add_worst(self, tile: Partial, start: int) -> None:
        largest = tile.rows[:, MAX].max(initial=0.0)
        if tile.counts[WORST] >= 0 and (self.counts[WORST] < 0 or largest > self.largest):
            self.counts[WORST] = start + tile.counts[WORST]
            self.largest = largest


def fold(golden: Array, device: Array, unit: DType | None) -> Partial:
    """Sums of one tile.

    Args:
        golden: float [R, C], C-contiguous.
        device: float [R, C], C-contiguous.
        unit: dtype whose ULP the histogram counts; no histogram where None.
    """
    part = Partial.empty(len(golden))
    if not golden.size:
        return part
    g, d = golden.astype(np.float64), device.astype(np.float64)
    finite = np.isfinite(g) & np.isfinite(d)
    whole = finite.all()
    if unit is not None:
        _count_ulps(part, *((golden, device) if whole else (golden[finite], device[finite])), unit)
    if not whole:
        _count_nonfinite(part, g, d)
        g, d = np.where(finite, g, 0.0), np.where(finite, d, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        _add_up(part, g, d, finite)
    return part


def _add_up(part: Partial, g: Array, d: Array, finite: Array) -> None:
    rows, counts = part.rows, part.counts
    terms = np.empty((MAX - G, *g.shape))
    e, absolute = np.subtract(d, g, out=terms[E - G]), terms[AE - G]
    terms[0] = g
    np.abs(e, out=absolute)
    for column, one, other in ((EE, e, e), (GG, g, g), (GE, g, e)):
        np.multiply(one, other, out=terms[column - G])
    rows[:, G:MAX] = terms.sum(axis=2).T  # one call: of a small tile a call costs more than its sums
    rows[:, N] = np.count_nonzero(finite, axis=1)
    rows[:, MAX] = absolute.max(axis=1)
    if finite.any():
        counts[WORST] = np.where(finite, absolute, -1.0).argmax()


def _count_nonfinite(part: Partial, g: Array, d: Array) -> None:
    for side, nan, inf in ((g, GOLDEN_NAN, GOLDEN_INF), (d, DEVICE_NAN, DEVICE_INF)):
        part.counts[nan] = np.count_nonzero(np.isnan(side))
        part.counts[inf] = np.count_nonzero(np.isinf(side))
    differ = (np.isnan(g) != np.isnan(d)) | ((np.isinf(g) | np.isinf(d)) & (g != d))
    part.counts[MISMATCHES] = np.count_nonzero(differ)
    if part.counts[MISMATCHES]:
        part.counts[FIRST] = int(differ.argmax())


def _count_ulps(part: Partial, g: Array, d: Array, unit: DType) -> None:
    """Histogram of pairs that are all finite."""
    distances = distance(ordinals(g, unit), ordinals(d, unit)).ravel()
    if distances.size:
        part.ulps += np.bincount(np.searchsorted(_BOUNDS, distances), minlength=BUCKETS)
        part.counts[ULP_MAX] = min(int(distances.max()), np.iinfo(np.int64).max)
