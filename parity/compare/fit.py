"""Scale and bias of a stage: what rounding cannot do, however small.

Every row is divided by its golden's RMS, so that a row counts for its numbers and not for its size, and
the error e is fitted as e ~ scale * golden + bias by least squares. The standard errors are clustered by
row and by column (Cameron, Gelbach, Miller 2011: two-way clustering), because elements are not
independent: one rounded RMS moves a whole row, and one cached key or bias moves a column in every row.
Taking rows alone as independent calls a clean chained run 8 standard errors off; with both it is 1.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, expm1, hypot, inf, sqrt

import numpy as np

from parity.compare.floor import HALF_ULP

SIGMAS = 5.0
"""Where the policy draws the line; few clusters are widened so that this many keep their rarity."""

LEAST = float(HALF_ULP) / 10
"""Smallest standard error: at five of them half of half a ULP, 0.056 %, however many elements prove it. Clean
devices are off in a direction, too: a nonlinear stage turns its input's noise into shrinkage, to second
order, and two implementations need not shrink alike. So the square of the floor's noise is a standard error
of the scale as well: at a chained noise of 1.6 % the clean NumPy device shrinks the drafter's last attention
by 0.076 %, as our bfloat16 reference does (0.075 %) and vLLM's does not (0.002 %). Local noise is so small
that its square never counts."""

CHUNK = 1 << 20


@dataclass(frozen=True)
class Fit:
    """Scale error (slope minus one), bias in multiples of the row's RMS, their standard errors, and the RMS error.

    `noise` is in multiples of the row's RMS, like the bias.
    """

    scale: float
    bias: float
    scale_error: float
    bias_error: float
    noise: float = 0.0


def fit(golden: np.ndarray, other: np.ndarray) -> Fit:
    """Fit `other` [R, ...] against `golden` [R, ...]; elements that are not finite count as equal.

    A golden without spread has no scale; its bias is the mean error.
    """
    golden, other = (side.reshape(len(side), -1) for side in (golden, other))
    count = golden.size
    sums = np.zeros(5)
    parts = _standardised(golden, other)
    if count <= CHUNK:
        parts = list(parts)
    for _, x, e in parts:
        sums += (x.sum(dtype=np.float64), e.sum(dtype=np.float64), np.vdot(x, x), np.vdot(x, e), np.vdot(e, e))
    mean, error = sums[:2] / count
    spread = sums[2] - count * mean * mean
    # A constant golden: what is left of its spread is the rounding of the sums.
    scale = (sums[3] - count * mean * error) / spread if spread > 1e-6 * count else 0.0
    bias = error - scale * mean
    noise = sqrt(sums[4] / count)
    again = parts if count <= CHUNK else _standardised(golden, other)
    by_row, by_column = _scores(again, golden.shape, scale, bias, mean, max(spread, 1e-6 * count))
    found = [hypot(_clustered(rows, noise), _clustered(columns, noise)) for rows, columns in zip(by_row, by_column)]
    return Fit(float(scale), float(bias), *found, noise)


def beyond(device: Fit, floor: Fit) -> tuple[float, float]:
    """By how many standard errors the device's scale and bias exceed the floor's own, 0 where they do not.

    The bfloat16 reference may be systematically off itself (a rounded RoPE scale is 0.1 %), and a device
    that is off as far is no worse. What it is off beyond that has the uncertainty of both fits; the floor's
    noise alone excuses a scale, never the device's.
    """
    return tuple(
        max(abs(mine) - abs(theirs), 0.0) / max(hypot(my_error, their_error), least)
        for mine, theirs, my_error, their_error, least in (
            (device.scale, floor.scale, device.scale_error, floor.scale_error, max(LEAST, floor.noise**2)),
            (device.bias, floor.bias, device.bias_error, floor.bias_error, LEAST),
        )
    )


def _standardised(golden: np.ndarray, other: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Rows of golden and error over the golden row's RMS, a chunk at a time; zero rows stay zero."""
    step = max(CHUNK // max(golden.shape[1], 1), 1)
    for start in range(0, len(golden), step):
        part = slice(start, start + step)
        with np.errstate(invalid="ignore", over="ignore"):
            x = golden[part].astype(np.float32)
            e = other[part].astype(np.float32) - x
        bad = ~np.isfinite(e)
        if bad.any():
            x, e = np.where(bad, 0, x), np.where(bad, 0, e)
        size = np.sqrt(np.mean(np.square(x, dtype=np.float64), axis=1, keepdims=True))
        weight = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
        yield part, x * weight, e * weight


def _scores(parts, shape, scale: float, bias: float, mean: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Each row's and each column's part in the error of scale and bias: [2, R] and [2, C]."""
    rows, columns = np.zeros((2, shape[0])), np.zeros((2, shape[1]))
    for part, x, e in parts:
        left = e - scale * x - bias
        slope = left * (x - mean) / spread
        for index, score in enumerate((slope, left / (shape[0] * shape[1]) - mean * slope)):
            rows[index, part] = score.sum(axis=1)
            columns[index] += score.sum(axis=0)
    return rows, columns


def _clustered(scores: np.ndarray, noise: float) -> float:
    """Standard error from the clusters' scores; at most what fully coherent clusters of this noise have."""
    count = len(scores)
    coherent = noise / sqrt(count)
    if count < 3:
        return coherent
    return min(sqrt((scores**2).sum() * count / (count - 1)) * _widening(count - 1), coherent)


def _widening(freedom: int) -> float:
    """Student's t over the normal quantile at SIGMAS for so many degrees of freedom (Wallace 1959)."""
    exponent = SIGMAS**2 * (freedom - 1.5) / (freedom - 1) ** 2 if freedom > 1 else inf
    if exponent > 60:
        return exp(30)
    return sqrt(freedom * expm1(exponent)) / SIGMAS
