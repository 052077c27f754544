"""Robust statistics of many series at once: scale, limits, trend, step, rank test (docs/history.md has the reasons).

Distributions are scipy.special's. The rest is not scipy.stats', which is slower for thousands of series: for 1,368
series of 60 nights `kendall` takes 4 ms, kendalltau along an axis 136, `line` takes a fifth of theilslopes' time, and
`chance` counts ties against, which mannwhitneyu does not. tests/history compares them with SciPy's values.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

NEEDED = 14
"""Nights that a band, or a trend, is made from, at the least. From ten a scale is less than half of the truth once in
a hundred series, and fewer than fourteen cannot reach the significance that hundreds of series ask for."""

RUN = 7
"""Nights in a row that may be needed outside."""

OUTSIDE = 3.0
"""No night counts as outside within this many standard deviations, however many follow it."""

ALARMS = 1 / 3000
"""False alarms allowed a night over all series: 1 % in thirty nights."""

OUTLIERS, WIDER = 0.05, 10.0
"""The share of nights that are taken for outliers, and how many times wider they are."""

EFFICIENCY = np.pi / 2
"""Variance of a median over that of a mean, for normal noise."""

SHORT = 9.0
"""A scale from n nights falls short by a factor of 1 + 9 / n once in twenty, for normal noise (n = 14 to 28)."""

SPANS = (30, 60)
"""Nights a trend is looked for in, the latest ones."""

NEGLIGIBLE = 0.1
"""Of the least half width of a band."""


def scale(values: Array) -> Array:
    """Robust standard deviation along the first axis: the widest of three views of the same values.

    The median deviation alone is 0 where more than half of the nights are the same, and by luck too small once in many
    thousand series; the inner 80 % and the range do not let it.
    """
    return cast(Array, np.maximum(core(values), (values.max(axis=0) - values.min(axis=0)) / 6))


def core(values: Array) -> Array:
    """The same without the range: outliers do not widen it."""
    deviation = 1.4826 * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    tenth, ninetieth = np.quantile(values, [0.1, 0.9], axis=0)
    return cast(Array, np.maximum(deviation, (ninetieth - tenth) / 2.563))


def limits(series: int) -> Array:
    """[RUN] standard deviations beyond which 1, 2, ... nights in a row are no chance among this many series.

    r independent nights all beyond the p quantile happen with probability p^r, so p is the r-th root of what one test
    may spend.
    """
    level = ALARMS / (max(series, 1) * RUN)
    distances = np.geomspace(1.0, 1e6, 4001)
    needed = [distances[np.argmax(tail(distances) <= level ** (1 / nights))] for nights in range(1, RUN + 1)]
    return np.maximum(needed, OUTSIDE)


def tail(distances: Array) -> Array:
    """How often a clean night is further out, on one side: Student's t with 3 degrees of freedom, and outliers."""
    from scipy.special import ndtr, stdtr

    return cast(Array, (1 - OUTLIERS) * stdtr(3, -distances) + OUTLIERS * ndtr(-distances / WIDER))


def normal_limit(probability: float) -> float:
    """Standard deviations beyond which a normal value lies with this probability, on one side."""
    from scipy.special import ndtri

    return float(-ndtri(probability))


def uncertainty(nights: int) -> float:
    """By what factor the limits are wider because centre and scale come from so many nights."""
    return float(np.sqrt(1 + EFFICIENCY / nights) * (1 + SHORT / nights))


def significance(series: int) -> float:
    """Standard deviations of the normal distribution beyond which a trend is no chance among this many series."""
    return normal_limit(ALARMS / (max(series, 1) * len(SPANS)))


def kendall(values: Array) -> Array:
    """[S] of [n, S]: Mann and Kendall's statistic in its standard deviations, ties counted as no order; n >= 3."""
    nights = len(values)
    rising = sum(np.sign(values[later:] - values[:-later]).sum(axis=0) for later in range(1, nights))
    variance = nights * (nights - 1) * (2 * nights + 5) / 18
    return cast(Array, (rising - np.sign(rising)) / np.sqrt(variance))


def line(values: Array) -> tuple[float, float]:
    """Theil and Sen: the median slope of all pairs a night, and the median intercept."""
    nights = np.arange(len(values))
    first, second = np.triu_indices(len(values), 1)
    slope = float(np.median((values[second] - values[first]) / (second - first)))
    return slope, float(np.median(values - slope * nights))


def inflation(residuals: Array, least: float) -> float:
    """What the likeness of neighbouring nights does to a trend's variance: (1 + r) / (1 - r) of the residuals' ranks.

    Residuals far below the least width of a band are no noise to speak of, and their order is rounding.
    """
    if float(scale(residuals)) <= NEGLIGIBLE * least:
        return 1.0
    ranks = np.argsort(np.argsort(residuals)) - (len(residuals) - 1) / 2
    likeness = float((ranks[1:] * ranks[:-1]).sum() / max((ranks**2).sum(), 1.0)) + 2 / len(residuals)
    likeness = min(max(likeness, 0.0), 0.8)
    return (1 + likeness) / (1 - likeness)


def split(values: Array, earliest: int = 1) -> int:
    """First night of the second of two levels that leave the least absolute deviation."""
    places = range(earliest, len(values))
    return min(places, key=lambda place: spread(values[:place]) + spread(values[place:]))


def spread(values: Array) -> float:
    """Sum of the absolute deviations from the median."""
    return float(np.abs(values - np.median(values)).sum())


def chance(past: Array, drawn: Array) -> float:
    """How likely values of one distribution lie as high above the past as these, or higher; ties count against.

    Mann and Whitney (1947): of all orders of n + m values, those with as few pairs the other way round.
    """
    pairs = int((past[:, None] >= drawn[None, :]).sum())
    return _orders(len(past), len(drawn), pairs) if 2 * pairs < len(past) * len(drawn) else 1.0


@lru_cache(maxsize=4096)
def _orders(past: int, drawn: int, pairs: int) -> float:
    """Share of the orders with at most so many pairs: Gauss's binomial coefficient to this degree, of the binomial."""
    counts = np.zeros(pairs + 1)
    counts[0] = orders = 1.0
    for number in range(1, drawn + 1):
        orders *= (past + number) / number
        if past + number <= pairs:
            counts[past + number :] -= counts[: pairs + 1 - past - number].copy()
        for remainder in range(min(number, pairs + 1)):
            counts[remainder::number] = np.cumsum(counts[remainder::number])
    return float(min(counts.sum() / orders, 1.0))
