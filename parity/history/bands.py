"""The noise band of a figure from its own past, and how far out is out: docs/history.md has the reasons."""

from __future__ import annotations

import numpy as np

NEEDED = 10
"""Nights a band is made from, at the least: the tenth percentile of fewer is their smallest value."""

REFERENCE = 20
"""And at the most: the first nights of a level. A band that took in every later night would follow a slow drift."""

RUN = 7
"""Nights in a row that may be needed outside."""

OUTSIDE = 3.0
"""No night counts as outside within this many standard deviations, however many follow it."""

ALARMS = 1 / 3000
"""False alarms allowed a night over all series: 1 % in thirty nights."""

EFFICIENCY = np.pi / 2
"""Variance of a median over that of a mean, for normal noise."""


def scale(values: np.ndarray) -> np.ndarray:
    """Robust standard deviation along the first axis: the widest of three views of the same values.

    The median deviation alone is 0 where more than half of the nights are the same, and by luck too small once in many
    thousand series; the inner 80 % and the range do not let it.
    """
    centre = np.median(values, axis=0)
    deviation = 1.4826 * np.median(np.abs(values - centre), axis=0)
    low, tenth, ninetieth, high = np.quantile(values, [0, 0.1, 0.9, 1], axis=0)
    return np.maximum(np.maximum(deviation, (ninetieth - tenth) / 2.563), (high - low) / 6)


def limits(series: int) -> np.ndarray:
    """[RUN] standard deviations beyond which 1, 2, ... nights in a row are no chance among this many series.

    r independent nights all beyond the p quantile happen with probability p^r, so p is the r-th root of what one test
    may spend. The tail is Student's with 3 degrees of freedom: what outliers of real nights look like, and more than the
    uncertainty of a scale from ten nights asks for.
    """
    from scipy.special import stdtrit

    level = ALARMS / (max(series, 1) * RUN)
    tails = level ** (1 / np.arange(1, RUN + 1))
    return np.maximum(-stdtrit(3, tails), OUTSIDE)


def uncertainty(nights: int) -> float:
    """What the uncertainty of a centre from so many nights adds to a standard deviation, as a factor."""
    return float(np.sqrt(1 + EFFICIENCY / nights))
