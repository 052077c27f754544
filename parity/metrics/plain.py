"""The pass in plain NumPy: every float dtype, no start-up cost; for small pairs and as a fallback."""

from __future__ import annotations

import numpy as np

from parity.metrics import partial as p
from parity.metrics.dtypes import distance, ordinals
from parity.metrics.partial import BUCKETS, Partial

_BOUNDS = np.array([0] + [2**k - 1 for k in range(1, BUCKETS)], np.uint64)
"""Largest distance of every bucket."""


def fold(golden: np.ndarray, device: np.ndarray, unit: np.dtype | None) -> Partial:
    """Sums of one tile.

    Args:
        golden: float [R, C], C-contiguous.
        device: float [R, C], C-contiguous.
        unit: dtype whose ULP the histogram counts; no histogram and no signed zeros where None.
    """
    part = Partial.empty(len(golden))
    if not golden.size:
        return part
    g, d = golden.astype(np.float64), device.astype(np.float64)
    finite = np.isfinite(g) & np.isfinite(d)
    whole = finite.all()
    if unit is not None:
        _ulps(part, *((golden, device) if whole else (golden[finite], device[finite])), unit)
    if not whole:
        _count(part, g, d)
        g, d = np.where(finite, g, 0.0), np.where(finite, d, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        _sums(part, g, d, finite)
    return part


def _sums(part: Partial, g: np.ndarray, d: np.ndarray, finite: np.ndarray) -> None:
    rows, counts = part.rows, part.counts
    e = d - g
    absolute = np.abs(e)
    terms = (finite, g, e, absolute, e * e, g * g, g * e)
    for column, term in enumerate(terms):
        rows[:, column] = term.sum(axis=1, dtype=np.float64)
    rows[:, p.MAX] = absolute.max(axis=1)
    if finite.any():
        counts[p.WORST] = np.where(finite, absolute, -1.0).argmax()


def _ulps(part: Partial, g: np.ndarray, d: np.ndarray, unit: np.dtype) -> None:
    """Histogram and signed zeros of pairs that are all finite."""
    zero = (g == 0) & (d == 0)
    if zero.any():
        part.counts[p.ZEROS] = np.count_nonzero(zero & (np.signbit(g) != np.signbit(d)))
    apart = distance(ordinals(g, unit), ordinals(d, unit)).ravel()
    if apart.size:
        part.ulps += np.bincount(np.searchsorted(_BOUNDS, apart), minlength=BUCKETS)
        part.counts[p.ULP_MAX] = min(int(apart.max()), np.iinfo(np.int64).max)


def _count(part: Partial, g: np.ndarray, d: np.ndarray) -> None:
    for side, nan, inf in ((g, p.GOLDEN_NAN, p.GOLDEN_INF), (d, p.DEVICE_NAN, p.DEVICE_INF)):
        part.counts[nan] = np.count_nonzero(np.isnan(side))
        part.counts[inf] = np.count_nonzero(np.isinf(side))
    differ = (np.isnan(g) != np.isnan(d)) | ((np.isinf(g) | np.isinf(d)) & (g != d))
    part.counts[p.MISMATCHES] = np.count_nonzero(differ)
    if part.counts[p.MISMATCHES]:
        part.counts[p.FIRST] = int(differ.argmax())
