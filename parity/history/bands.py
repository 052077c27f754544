"""The noise band of a figure from its own past, and how far out is out: docs/history.md has the reasons."""

from __future__ import annotations

import numpy as np

NEEDED = 14
"""Nights a band is made from, at the least. From ten a scale is less than half of the truth once in a hundred series."""

REFERENCE = 28
"""And at the most: the first nights of a level. A band that took in every later night would follow a slow drift."""

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

QUIET = 1 / 3
"""A device whose figures differ from night to night has no figure quieter than this share of the least half width."""


def scale(values: np.ndarray) -> np.ndarray:
    """Robust standard deviation along the first axis: the widest of three views of the same values.

    The median deviation alone is 0 where more than half of the nights are the same, and by luck too small once in many
    thousand series; the inner 80 % and the range do not let it.
    """
    return np.maximum(core(values), (values.max(axis=0) - values.min(axis=0)) / 6)


def core(values: np.ndarray) -> np.ndarray:
    """The same without the range: outliers do not widen it."""
    deviation = 1.4826 * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    tenth, ninetieth = np.quantile(values, [0.1, 0.9], axis=0)
    return np.maximum(deviation, (ninetieth - tenth) / 2.563)


def limits(series: int) -> np.ndarray:
    """[RUN] standard deviations beyond which 1, 2, ... nights in a row are no chance among this many series.

    r independent nights all beyond the p quantile happen with probability p^r, so p is the r-th root of what one test
    may spend.
    """
    level = ALARMS / (max(series, 1) * RUN)
    far = np.geomspace(1.0, 1e6, 4001)
    needed = [far[np.argmax(tail(far) <= level ** (1 / nights))] for nights in range(1, RUN + 1)]
    return np.maximum(needed, OUTSIDE)


def tail(far: np.ndarray) -> np.ndarray:
    """How often a clean night is further out, on one side: Student's t with 3 degrees of freedom, and outliers."""
    from scipy.special import ndtr, stdtr

    return (1 - OUTLIERS) * stdtr(3, -far) + OUTLIERS * ndtr(-far / WIDER)


def uncertainty(nights: int) -> float:
    """By what factor the limits are wider because centre and scale come from so many nights."""
    return float(np.sqrt(1 + EFFICIENCY / nights) * (1 + SHORT / nights))
