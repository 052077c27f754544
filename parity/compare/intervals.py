"""How far an estimate from N random sums may be from what it estimates: chi-square intervals, and how many degrees of
freedom an error over many rows has."""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, lgamma, log, sqrt
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.99
"""Of an interval that a verdict rests on, both ends together; of a largest row, for all rows together. A device at a
bound is judged wrongly once in 200 on either side; one that is well within it or beyond it never."""

MANY = 400.0
"""Degrees of freedom from which Wilson and Hilferty's cube is exact to 1e-4."""


def factors(freedom: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """What an estimated norm is multiplied with at the lower and at the upper end of its interval.

    Args:
        freedom: degrees of freedom of its square, a chi-square by which the true square is multiplied.
    """
    tail = (1 - confidence) / 2
    low, high = quantile(1 - tail, freedom), quantile(tail, freedom)
    return sqrt(freedom / low), sqrt(freedom / high) if high > 0 else inf


def freedom(sums: np.ndarray) -> float:
    """Degrees of freedom of the squares of an error's sums [R, N], all added up: N for errors in one direction, more
    for errors in many.

    The sum over rows is s'Gs for each s, G the rows' covariance: a chi-square of tr(G)² / ||G||² degrees
    (Satterthwaite). ||G||² is taken of the N x N sums, which makes it too large, and the interval wider, never less.
    """
    gram = sums.T @ sums
    square = float(np.square(gram).sum())
    return sums.shape[1] * float(np.trace(gram)) ** 2 / square if square > 0 else float(sums.shape[1])


@lru_cache(maxsize=4096)
def quantile(share: float, freedom: float) -> float:
    """The chi-square that this share of all draws is below."""
    if freedom > MANY:
        spread = 2 / (9 * freedom)
        return float(freedom * (1 - spread + NormalDist().inv_cdf(share) * sqrt(spread)) ** 3)
    low, high = 0.0, freedom + 60 * sqrt(freedom) + 60
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(freedom / 2, middle / 2) < share else (low, middle)
    return (low + high) / 2


def _below(shape: float, x: float) -> float:
    """The regularised lower incomplete gamma function P(shape, x), by its series or its continued fraction."""
    if x <= 0:
        return 0.0
    scale = exp(shape * log(x) - x - lgamma(shape))
    if x < shape + 1:
        term = total = 1 / shape
        number = shape
        while term > total * 1e-14:
            number += 1
            term *= x / number
            total += term
        return scale * total
    return 1 - scale * _fraction(shape, x)


def _fraction(shape: float, x: float) -> float:
    """Lentz's evaluation of the continued fraction behind 1 - P."""
    tiny = 1e-300
    b = x + 1 - shape
    c, d = 1 / tiny, 1 / b
    total, number = d, 0
    while number < 10_000:
        number += 1
        step = -number * (number - shape)
        b += 2
        d = 1 / (step * d + b or tiny)
        c = b + step / c or tiny
        total *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return total
