"""The noise band of a figure from its own past, and how far out is out (docs/history.md has the reasons)."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Width:
    """The larger of an absolute half width and a share of the band's centre."""

    absolute: float = 0.0
    share: float = 0.0


_NOISE, _FITS, _PLAIN = "x noise", "standard errors", "relative"


def _plain(most: float) -> dict[tuple[str, str], Width]:
    """Of a float32 device, which knows no noise."""
    return {(mode, _PLAIN): Width(most) for mode in ("local", "chained")}


HALF_WIDTHS: dict[str, dict[tuple[str, str], Width]] = {
    "l2": {("local", _NOISE): Width(0.001), ("chained", _NOISE): Width(0.09), **_plain(5e-7)},
    "worst_row": {("local", _NOISE): Width(0.3), ("chained", _NOISE): Width(1.0), **_plain(3.2e-6)},
    "largest": {("local", _NOISE): Width(0.7), ("chained", _NOISE): Width(1.8), **_plain(8.5e-6)},
    "scale": {("local", _FITS): Width(0.04), ("chained", _FITS): Width(3.6), **_plain(1.5e-7)},
    "bias": {("local", _FITS): Width(0.05), ("chained", _FITS): Width(2.0), **_plain(1.2e-7)},
    "unlike": {("local", "share"): Width(1.3e-4)},
    "noise": {("local", "share"): Width(0.006), ("chained", "share"): Width(0.006)},
    "bug": {},
    # One more flip within the noise: half a logit over 500 rows. Met: 0.00013, on 24 prompts.
    "regret_mean": {("chained", "logits"): Width(1e-3)},
    "kl_mean": {("chained", "nats"): Width(1e-5, 0.55)},
    # Half of the figure's own interval where that is wider, as it is unless every text is the reference's, which is no proof
    # that a tie could not part them: a fifth of what the gate allows.
    "relative": {("chained", _PLAIN): Width(0.01)},
    "relative_forced": {("chained", _PLAIN): Width(0.01)},
    # Medians of five repeats on a busy machine: benchmarks/README.md has their spread, least to most, within 8 %.
    "over_baseline": {("", "ratio"): Width(0.0, 0.1)},
}
"""By metric, then (mode, unit)."""
