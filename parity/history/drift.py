"""Slow drifts: Mann and Kendall's test for a trend over many series, Theil and Sen's slope of one, and where it began."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity.history.bands import ALARMS, OUTSIDE, scale
from parity.history.steps import split

SPANS = (30, 60)
"""Nights a trend is looked for in, the latest ones."""

NEGLIGIBLE = 0.1
"""Of the least half width of a band."""

NEEDED = 14
"""Nights of a trend, at the least: fewer cannot reach the significance that hundreds of series ask for."""


@dataclass(frozen=True)
class Trend:
    """A drift from `first` on: the line's values there and tonight, and the deviation around it."""

    first: int
    before: float
    now: float
    deviation: float


def significance(series: int) -> float:
    """Standard deviations of the normal distribution beyond which a trend is no chance among this many series."""
    from scipy.special import ndtri

    return float(-ndtri(ALARMS / (max(series, 1) * len(SPANS))))


def screen(dense: np.ndarray, counts: np.ndarray, least: float) -> np.ndarray:
    """[S] which series rise or fall steadily over a span, order alone considered: heavy tails do not matter.

    Series of equal length are taken together; see `steps.packed`.
    """
    hit = np.zeros(dense.shape[1], bool)
    for count in np.unique(counts[counts >= NEEDED]):
        same = counts == count
        for span in {min(one, int(count)) for one in SPANS}:
            hit[same] |= np.abs(kendall(dense[count - span : count, same])) >= least
    return hit


def kendall(values: np.ndarray) -> np.ndarray:
    """[S] of [n, S]: Mann and Kendall's statistic in its standard deviations, ties counted as no order; n >= 3."""
    nights = len(values)
    rising = sum(np.sign(values[later:] - values[:-later]).sum(axis=0) for later in range(1, nights))
    variance = nights * (nights - 1) * (2 * nights + 5) / 18
    return (rising - np.sign(rising)) / np.sqrt(variance)


def trend(values: np.ndarray, significant: float, least) -> Trend | None:
    """The drift of one series without gaps up to its last night, or None.

    It has to be significant after what the nights have in common with the night before, explain the values better than
    one step, and have gone further than the noise around the line and the least width of a band.
    """
    for span in dict.fromkeys(min(one, len(values)) for one in SPANS):
        nights = values[len(values) - span :]
        if span < NEEDED or abs(float(kendall(nights[:, None])[0])) < significant:
            continue
        slope, start = line(nights)
        rest = nights - (start + slope * np.arange(span))
        if abs(float(kendall(nights[:, None])[0])) < significant * np.sqrt(inflation(rest, float(least(start)))):
            continue
        found = _begun(nights, len(values) - span)
        far = max(OUTSIDE * found.deviation, float(least(found.before)))
        if abs(found.now - found.before) > far and _cost_of(nights, found, len(values) - span) < _step_cost(nights):
            return found
    return None


def line(values: np.ndarray) -> tuple[float, float]:
    """Theil and Sen: the median slope of all pairs a night, and the median intercept."""
    nights = np.arange(len(values))
    first, second = np.triu_indices(len(values), 1)
    slope = float(np.median((values[second] - values[first]) / (second - first)))
    return slope, float(np.median(values - slope * nights))


def inflation(rest: np.ndarray, least: float) -> float:
    """What the likeness of neighbouring nights does to a trend's variance: (1 + r) / (1 - r) of the residuals' ranks.

    Residuals far below the least width of a band are no noise to speak of, and their order is rounding.
    """
    if float(scale(rest)) <= NEGLIGIBLE * least:
        return 1.0
    ranks = np.argsort(np.argsort(rest)) - (len(rest) - 1) / 2
    likeness = float((ranks[1:] * ranks[:-1]).sum() / max((ranks**2).sum(), 1.0)) + 2 / len(rest)
    likeness = min(max(likeness, 0.0), 0.8)
    return (1 + likeness) / (1 - likeness)


def _begun(nights: np.ndarray, offset: int) -> Trend:
    """Level, then a slope from some night on: the night that leaves the least absolute deviation."""
    best = min((_hinge(nights, knot) for knot in range(len(nights) - 5)), key=lambda one: one[0])
    _, knot, level, slope = best
    rest = nights - _bent(len(nights), knot, level, slope)
    return Trend(offset + knot, level, level + slope * (len(nights) - 1 - knot), float(scale(rest)))


def _hinge(nights: np.ndarray, knot: int) -> tuple[float, int, float, float]:
    if knot < 3:
        slope, level = line(nights[knot:])
        level = level if knot == 0 else float(np.median(nights[: knot + 1]))
    else:
        level = float(np.median(nights[: knot + 1]))
    ahead = np.arange(1, len(nights) - knot)
    slope = float(np.median((nights[knot + 1 :] - level) / ahead))
    return float(np.abs(nights - _bent(len(nights), knot, level, slope)).sum()), knot, level, slope


def _bent(nights: int, knot: int, level: float, slope: float) -> np.ndarray:
    return level + slope * np.clip(np.arange(nights) - knot, 0, None)


def _cost_of(nights: np.ndarray, found: Trend, offset: int) -> float:
    knot = found.first - offset
    slope = (found.now - found.before) / max(len(nights) - 1 - knot, 1)
    return float(np.abs(nights - _bent(len(nights), knot, found.before, slope)).sum())


def _step_cost(nights: np.ndarray) -> float:
    place = split(nights)
    return sum(float(np.abs(side - np.median(side)).sum()) for side in (nights[:place], nights[place:]))
