"""What one pass leaves behind: a table of sums per row, a ULP histogram and counts.

Every kernel fills a `Partial` for one tile of a pair; partials of different tiles add up. With g the
golden, d the device and e = d - g (all float64, finite pairs only), the row table holds

    N = count, G = sum g, E = sum e, AE = sum |e|, EE = sum e*e, GG = sum g*g, GE = sum g*e, MAX = max |e|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

N, G, E, AE, EE, GG, GE, MAX = range(8)
SUMS = slice(0, MAX)
WIDTH = 8

GOLDEN_NAN, GOLDEN_INF, DEVICE_NAN, DEVICE_INF, MISMATCHES, FIRST, ZEROS, ULP_MAX, WORST = range(9)
COUNTED = [GOLDEN_NAN, GOLDEN_INF, DEVICE_NAN, DEVICE_INF, MISMATCHES, ZEROS]

BUCKETS = 65
"""Histogram length: bucket k counts ULP distances of bit length k, that is 0, 1, 2-3, 4-7, 8-15, ..."""


@dataclass
class Partial:
    """Sums of one tile, or of all tiles so far.

    Attributes:
        rows: float64 [R, WIDTH], one line per row.
        ulps: int64 [BUCKETS].
        counts: int64 [9]; `FIRST` is the flat index row * C + column of the first non-finite mismatch,
            `WORST` that of the largest |e|; -1 where there is none.
    """

    rows: np.ndarray
    ulps: np.ndarray
    counts: np.ndarray
    largest: float = 0.0

    @classmethod
    def empty(cls, rows: int) -> Partial:
        """No element seen yet, for `rows` rows."""
        counts = np.zeros(9, np.int64)
        counts[[FIRST, WORST]] = -1
        return cls(np.zeros((rows, WIDTH)), np.zeros(BUCKETS, np.int64), counts)

    def add(self, tile: Partial, row: int, column: int, columns: int) -> None:
        """Add a tile whose first element is (`row`, `column`) of a pair with `columns` columns."""
        self._worst(tile, row * columns + column)
        into = self.rows[row : row + len(tile.rows)]
        np.maximum(into[:, MAX], tile.rows[:, MAX], out=into[:, MAX])
        into[:, SUMS] += tile.rows[:, SUMS]
        self.ulps += tile.ulps
        self.counts[COUNTED] += tile.counts[COUNTED]
        self.counts[ULP_MAX] = max(self.counts[ULP_MAX], tile.counts[ULP_MAX])
        self._first(tile.counts[FIRST], row * columns + column)

    def _worst(self, tile: Partial, start: int) -> None:
        largest = tile.rows[:, MAX].max(initial=0.0)
        if tile.counts[WORST] >= 0 and (self.counts[WORST] < 0 or largest > self.largest):
            self.counts[WORST] = start + tile.counts[WORST]
            self.largest = largest

    def _first(self, found: int, start: int) -> None:
        if found >= 0 and (self.counts[FIRST] < 0 or start + found < self.counts[FIRST]):
            self.counts[FIRST] = start + found
