"""From sums to metrics: every formula once, every degenerate case defined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf, isnan, sqrt

import numpy as np

from parity.arrays import Array

CANCELLED = 1e-7
"""Share of a second moment below which what is left of it after subtraction is too inexact in float64."""


@dataclass(frozen=True)
class Moments:
    """Second moments of a pair over its finite elements: not means but sums, e = device - golden.

    Attributes:
        n: elements.
        golden_mean, error_mean: means of golden and e.
        golden_sq, device_sq, error_sq: sums of squares.
        cross: sum of golden * e.
        dot: sum of golden * device.
        variance: sum of (golden - mean)^2, by subtraction.
        covariance: sum of (golden - mean) * e, by subtraction.
        golden_constant, device_constant: all elements of that side are equal; only `reread` finds out.
    """

    n: int
    golden_mean: float
    error_mean: float
    golden_sq: float
    device_sq: float
    error_sq: float
    cross: float
    dot: float
    variance: float
    covariance: float
    golden_constant: bool = False
    device_constant: bool = False

    @classmethod
    def of(cls, sums: Array) -> Moments:
        """From the totals of a row table, by subtraction."""
        n, g, e, _, ee, gg, ge, _ = (float(x) for x in sums)
        m = max(n, 1.0)
        dd = max(gg + 2 * ge + ee, 0.0)
        return cls(int(n), g / m, e / m, gg, dd, ee, ge, gg + ge, max(gg - g * g / m, 0.0), ge - g * e / m)

    @property
    def doubtful(self) -> bool:
        """Whether a subtraction cancelled, so that the pair must be read again: a nearly constant side,
        or a device much smaller than its golden."""
        mean = self.golden_mean + self.error_mean
        spread = self.device_sq - self.n * mean * mean
        return (
            self.variance <= CANCELLED * self.golden_sq
            or self.device_sq <= CANCELLED * self.golden_sq
            or spread <= CANCELLED * self.device_sq
        )

    def reread(self, tiles: Iterable[tuple[Array, Array]]) -> Moments:
        """With what subtraction could not give: the device's square sum, the dot product, constancy. Slow, and rare.

        Args:
            tiles: golden and device, piece by piece, any shape.
        """
        device_sq = dot = 0.0
        least, most = np.array([inf, inf]), np.array([-inf, -inf])
        for golden, device in tiles:
            g, d = golden.astype(np.float64), device.astype(np.float64)
            finite = np.isfinite(g) & np.isfinite(d)
            g, d = g[finite], d[finite]
            if g.size:
                with np.errstate(over="ignore", invalid="ignore"):
                    device_sq, dot = device_sq + (d * d).sum(), dot + (g * d).sum()
                least, most = np.minimum(least, (g.min(), d.min())), np.maximum(most, (g.max(), d.max()))
        constant = (least == most) & (self.n > 1)
        return replace(
            self,
            device_sq=float(device_sq),
            dot=float(dot),
            golden_constant=bool(constant[0]),
            device_constant=bool(constant[1]),
        )


def ratio(error: Array, norm: Array, differs: Array) -> Array:
    """error / norm per row; a zero norm gives inf where the row differs, else 0; overflow gives inf."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where(norm > 0, error / norm, np.where(differs, inf, 0.0))
    return np.where(np.isnan(quotient), inf, quotient)


def relative(error: float, norm: float, differs: bool) -> float:
    """`ratio` of one pair."""
    quotient = error / norm if norm > 0 else inf if differs else 0.0
    return inf if isnan(quotient) else quotient


def cosine_distance(m: Moments) -> float:
    """1 - cos(golden, device).

    With e = d - g, |g|^2 |d|^2 - (g.d)^2 = |g|^2 |e|^2 - (g.e)^2, hence
    1 - cos = (|g|^2 |e|^2 - (g.e)^2) / (|g||d| (|g||d| + g.d)): no cancellation while |e| <= |g| / 2.
    A larger e leaves nothing tiny to be exact about; 1 - cos as it stands is then right to 1e-12.
    """
    gg, dd, ee, ge = m.golden_sq, m.device_sq, m.error_sq, m.cross
    if gg == 0 or dd == 0:
        return 0.0 if gg == dd else 1.0
    cosine = min(max(m.dot / (sqrt(gg) * sqrt(dd)), -1.0), 1.0)
    if not 4 * ee <= gg:
        return _defined(1.0 - cosine)
    # Divided step by step: the products overflow float64 before the quotient does.
    sine_sq = (ee / dd) * max(0.0, 1.0 - (ge / gg) * (ge / ee)) if ee else 0.0
    return _defined(sine_sq / (1.0 + cosine))


def _defined(distance: float) -> float:
    """1 where overflowing sums made the distance NaN."""
    return 1.0 if isnan(distance) else float(distance)
