"""Medians, their spread, and ratios of rates with their limits: never a figure of one run without saying so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan, cos, exp, pi, sin, sqrt

import numpy as np
from pydantic import BaseModel, ConfigDict

CONFIDENCE = 0.95
"""Of each limit alone: a gate asks one side only."""

RESAMPLES = 2000
"""A standard error from 2,000 resamples is itself known to 1.6 %, well below what a few repeats leave open."""

MOST = 100.0
"""Of the logarithm of a limit: beyond it a ratio is anything at all."""

ONE_RUN = "one run, no spread"


class Spread(BaseModel):
    """Values measured several times: median and quartiles, which are None for one value alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    median: float
    low: float | None = None
    high: float | None = None
    count: int

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.median:.4g} ({ONE_RUN})"
        return f"{self.median:.4g} [{self.low:.4g}, {self.high:.4g}]"


class Ratio(BaseModel):
    """A ratio of two rates, with its one-sided limits; None where nothing was repeated.

    Attributes:
        groups: prompts, or batches of them, that it is over.
        repeats: of each.
        confidence: of each limit alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    estimate: float
    low: float | None = None
    high: float | None = None
    groups: int
    repeats: int
    confidence: float = CONFIDENCE

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.estimate:.2f}x ({ONE_RUN})"
        return f"{self.estimate:.2f}x [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Times:
    """What was timed: tokens [G, R] that came out and the seconds [G, R] they took, by group and repeat."""

    tokens: np.ndarray
    seconds: np.ndarray

    @property
    def rate(self) -> float:
        """Tokens per second over all of it."""
        return float(self.tokens.sum() / self.seconds.sum())

    def of_groups(self, chosen: np.ndarray) -> Times:
        """Those of some groups, bool [G]."""
        return Times(self.tokens[chosen], self.seconds[chosen])


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles.

    Raises:
        ValueError: there is no value.
    """
    if len(values) == 0:
        raise ValueError("a spread of nothing")
    low, middle, high = (float(one) for one in np.quantile(np.asarray(values, np.float64), [0.25, 0.5, 0.75]))
    several = len(values) > 1
    return Spread(median=middle, low=low if several else None, high=high if several else None, count=len(values))


def rate_ratio(
    over: Times, under: Times, confidence: float = CONFIDENCE, paired: bool = True, seed: int = 0
) -> Ratio | None:
    """`over`'s rate as a multiple of `under`'s, with limits from a bootstrap of two levels; None without tokens.

    It is over the groups of which every repeat gave a token: one that ends with its first token has no rate.

    Groups are drawn, both sides together, which says how much the ratio depends on them; and within each group its
    repeats, of both sides together where they were measured in turn (`paired`), else apart. The two variances of the
    ratio's logarithm add up, their degrees of freedom by Welch and Satterthwaite, and Student's quantile gives the
    limits: percentiles of three or five things are too narrow.

    Raises:
        ValueError: the two are not of the same groups.
    """
    if over.seconds.shape[0] != under.seconds.shape[0]:
        raise ValueError("a ratio is of the same groups on both sides")
    decoded = np.minimum(over.tokens.min(axis=1), under.tokens.min(axis=1)) > 0
    if not decoded.any():
        return None
    over, under = over.of_groups(decoded), under.of_groups(decoded)
    groups, repeats = over.seconds.shape[0], min(over.seconds.shape[1], under.seconds.shape[1])
    found = Ratio(estimate=over.rate / under.rate, groups=groups, repeats=repeats, confidence=confidence)
    if repeats < 2:
        return found
    drawn = np.random.default_rng(seed)
    of_groups = _variance_of_groups(over, under, drawn)
    of_repeats = _variance_of_repeats(over, under, paired, drawn)
    total = of_groups + of_repeats
    shares = of_groups**2 / max(groups - 1, 1) + of_repeats**2 / (groups * (repeats - 1))
    freedom = max(int(total**2 / shares), 1) if shares else groups * (repeats - 1)
    width = student(freedom, confidence) * sqrt(total)
    limits = {"low": found.estimate * exp(-width), "high": found.estimate * exp(min(width, MOST))}
    return found.model_copy(update=limits)


def _variance_of_groups(over: Times, under: Times, drawn: np.random.Generator) -> float:
    """Of the ratio's logarithm where other groups might have been measured."""
    count = over.seconds.shape[0]
    if count < 2:
        return 0.0
    chosen = drawn.integers(count, size=(RESAMPLES, count))
    logs = [np.log(one.tokens.sum(1)[chosen].sum(1) / one.seconds.sum(1)[chosen].sum(1)) for one in (over, under)]
    return float((logs[0] - logs[1]).var(ddof=1) * count / (count - 1))


def _variance_of_repeats(over: Times, under: Times, paired: bool, drawn: np.random.Generator) -> float:
    """Of the ratio's logarithm where these groups might have been measured again."""
    together = paired and over.seconds.shape == under.seconds.shape
    first = drawn.integers(over.seconds.shape[1], size=(RESAMPLES, *over.seconds.shape))
    second = first if together else drawn.integers(under.seconds.shape[1], size=(RESAMPLES, *under.seconds.shape))
    logs = _repeated(over, first) - _repeated(under, second)
    return float(logs.var(ddof=1))


def _repeated(times: Times, chosen: np.ndarray) -> np.ndarray:
    """The logarithm of the rate of every resample [D] of the repeats [D, G, R].

    Repeats lie as far from their group's mean as the drawing of few of them falls short.
    """
    count = times.seconds.shape[1]
    mean = times.seconds.mean(axis=1, keepdims=True)
    wider = np.maximum(mean + (times.seconds - mean) * sqrt(count / (count - 1)), times.seconds.min() / 2)
    groups = np.arange(times.seconds.shape[0])[None, :, None]
    logs: np.ndarray = np.log(times.tokens[groups, chosen].sum((1, 2)) / wider[groups, chosen].sum((1, 2)))
    return logs


def student(freedom: int, confidence: float) -> float:
    """Student's t that is exceeded with probability 1 - `confidence` (Abramowitz and Stegun 26.7.3 and 26.7.4).

    Raises:
        ValueError: no degree of freedom, or a confidence outside (0.5, 1).
    """
    if freedom < 1 or not 0.5 < confidence < 1:
        raise ValueError(f"no quantile at {confidence} with {freedom} degrees of freedom")
    low, high = 0.0, 1.0
    while _within(high, freedom) < 2 * confidence - 1:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 2 * confidence - 1 else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Probability of |T| < t."""
    angle = atan(t / sqrt(freedom))
    term, total, square = cos(angle) if freedom % 2 else 1.0, 0.0, cos(angle) ** 2
    for step in range(freedom // 2):
        total += term
        over = 2 * step + 2 if freedom % 2 else 2 * step + 1
        term *= square * over / (over + 1)
    return 2 / pi * (angle + sin(angle) * total) if freedom % 2 else sin(angle) * total
