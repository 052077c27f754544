"""The second look at a pair whose moments cancelled: centred sums, in NumPy; rare, and slower."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from parity.metrics.formulas import Moments


def centred(moments: Moments, tiles: Iterable[tuple[np.ndarray, np.ndarray]]) -> Moments:
    """`moments` with what subtraction could not give: variances, the device's square sum, constancy.

    Args:
        moments: of the first pass.
        tiles: golden and device, piece by piece, any shape.
    """
    sums = np.zeros(5)
    ends = np.array([[np.inf, np.inf], [-np.inf, -np.inf]])
    for golden, device in tiles:
        g, d = golden.astype(np.float64), device.astype(np.float64)
        finite = np.isfinite(g) & np.isfinite(d)
        g, d = g[finite], d[finite]
        if g.size:
            sums += _sums(g, d, moments.golden_mean)
            ends[0] = np.minimum(ends[0], (g.min(), d.min()))
            ends[1] = np.maximum(ends[1], (g.max(), d.max()))
    return _replaced(moments, sums, ends[0] == ends[1])


def _sums(g: np.ndarray, d: np.ndarray, mean: float) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        h, e = g - mean, d - g
        return np.array([h.sum(), (h * h).sum(), (h * e).sum(), (d * d).sum(), (g * d).sum()])


def _replaced(moments: Moments, sums: np.ndarray, constant: np.ndarray) -> Moments:
    first, second, cross, device_sq, dot = (float(x) for x in sums)
    several = moments.n > 1
    return replace(
        moments,
        device_sq=device_sq,
        dot=dot,
        variance=0.0 if constant[0] else max(second - first * first / max(moments.n, 1), 0.0),
        covariance=cross - first * moments.error_mean,
        golden_constant=bool(several and constant[0]),
        device_constant=bool(several and constant[1]),
    )
