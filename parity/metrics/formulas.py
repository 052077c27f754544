"""From sums to metrics: every formula once, every degenerate case defined."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, isnan, log10, sqrt

import numpy as np

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
        variance: sum of (golden - mean)^2; exactly 0 for a constant golden.
        covariance: sum of (golden - mean) * e.
        golden_constant, device_constant: all elements of that side are equal.
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
    def of(cls, sums: np.ndarray) -> Moments:
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


def ratio(error: np.ndarray, norm: np.ndarray, differs: np.ndarray) -> np.ndarray:
    """error / norm per row; a zero norm gives inf where the row differs, else 0; overflow gives inf."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where(norm > 0, error / norm, np.where(differs, inf, 0.0))
    return np.where(np.isnan(quotient), inf, quotient)


def defined(value: float, otherwise: float = inf) -> float:
    """`value`, or `otherwise` where overflowing sums made it NaN."""
    return otherwise if isnan(value) else float(value)


def relative(error: float, norm: float, differs: bool) -> float:
    """`ratio` of one pair."""
    return float(ratio(np.float64(error), np.float64(norm), np.bool_(differs)))


def sqnr_db(rel_l2: float) -> float:
    """Signal to quantisation noise ratio in dB."""
    if rel_l2 == 0:
        return inf
    return -20 * log10(rel_l2) if isfinite(rel_l2) else -inf


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
        return defined(1.0 - cosine, 1.0)
    # Divided step by step: the products overflow float64 before the quotient does.
    sine_sq = (ee / dd) * max(0.0, 1.0 - (ge / gg) * (ge / ee)) if ee else 0.0
    return defined(sine_sq / (1.0 + cosine), 1.0)


def fit(m: Moments) -> tuple[float, float]:
    """Least squares device ~ (1 + scale_error) * golden + bias: those two; a constant golden has no slope."""
    if m.golden_constant or m.golden_sq == 0 or m.variance == 0:
        return 0.0, defined(m.error_mean)
    scale_error = m.covariance / m.variance
    return defined(scale_error), defined(m.error_mean - scale_error * m.golden_mean)
