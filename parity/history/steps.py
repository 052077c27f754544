"""Steps: where a figure left its band and stayed outside; a screen over all series, the walk along one, and the bands as they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from parity.history.again import NIGHTS, Repeats
from parity.history.bands import NEEDED, OUTSIDE, REFERENCE, RUN, limits, scale, uncertainty
from parity.history.series import series, stamps

if TYPE_CHECKING:
    import pandas as pd

EARLIER = 3
"""Nights before the run outside in which the step itself may lie: a first night may have been inside by luck."""


def packed(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[T, S] with every series' missing nights moved behind its values, the nights [T, S] they come from, counts [S]."""
    missing = np.isnan(values)
    order = np.argsort(missing, axis=0, kind="stable")
    return np.take_along_axis(values, order, axis=0), order, (~missing).sum(axis=0)


@dataclass(frozen=True)
class Rule:
    """What counts as outside, for all series or for one.

    Attributes:
        least: a centre to the least half width of the band around it.
        quiet: the least standard deviation, as a share of that width: 0 where a device repeats bit for bit.
        limits: see `bands.limits`.
    """

    least: Callable[[np.ndarray], np.ndarray]
    quiet: np.ndarray
    limits: np.ndarray

    def outside(self, past: np.ndarray, deviation: np.ndarray, run: np.ndarray) -> np.ndarray:
        """Whether a run of nights [r, ...] is outside the band of its past [n, ...], and beyond all that the past has shown.

        What was there before is no news, however far from the centre: a figure that has two values has not changed.
        """
        centre = np.median(past, axis=0)
        least = self.least(centre)
        width = np.maximum(deviation, self.quiet * least) * uncertainty(len(past))
        half = np.maximum(self.limits[len(run) - 1] * width, least)
        above = run.min(axis=0) > np.maximum(centre + half, past.max(axis=0))
        return above | (run.max(axis=0) < np.minimum(centre - half, past.min(axis=0)))


def screen(dense: np.ndarray, counts: np.ndarray, rule: Rule) -> np.ndarray:
    """[S] which series have a run of nights outside the band of the nights before it, anywhere; see `packed`."""
    hit = np.zeros(dense.shape[1], bool)
    total = int(counts.max(initial=0))
    for split in range(NEEDED, total):
        hit |= _run_outside(dense, counts, slice(max(0, split - REFERENCE), split), split, rule)
    for first in range(max(REFERENCE, total - RUN), total):  # a slow drift carries the nights just before along
        hit |= _run_outside(dense, counts, slice(0, REFERENCE), first, rule)
    return hit


def _run_outside(dense, counts, reference: slice, first: int, rule: Rule) -> np.ndarray:
    past, found = dense[reference], np.zeros(dense.shape[1], bool)
    with np.errstate(invalid="ignore"):
        deviation = scale(past)
        for nights in range(1, min(RUN, len(dense) - first) + 1):
            run = dense[first : first + nights]
            found |= rule.outside(past, deviation, run) & (first + nights <= counts)
    return found


@dataclass(frozen=True)
class Level:
    """A stretch of nights on one level: its first night, one behind its last, its median, and its robust deviation.

    `repeated`: its repeats within a night show that it is another level, even where nights alone do not.
    """

    first: int
    end: int
    centre: float
    deviation: float
    repeated: bool = False


def levels(values: np.ndarray, rule: Rule, repeats: Repeats | None = None) -> list[Level]:
    """The levels of one series, one behind the other; `values` [n] without gaps."""
    found, start, deviation, night, repeated = [], 0, 0.0, NEEDED, False
    while night < len(values):
        split, again = _left(values, start, night, deviation, rule), False
        if split is None and repeats:
            split = _repeated(repeats, start, night, rule)
            again = split is not None
        if split is not None:
            found.append(_level(values, start, split, deviation, repeated))
            start, deviation, repeated = split, found[-1].deviation, again
        night += 1
    return [*found, _level(values, start, len(values), deviation, repeated)]


def _repeated(repeats: Repeats, start: int, night: int, rule: Rule) -> int | None:
    """Where the level ended, if this night's repeats show it."""
    firsts = range(night, max(night - NIGHTS, start), -1)
    return next((first for first in firsts if repeats.shown(start, first, night, rule.least)), None)


def _level(values: np.ndarray, first: int, end: int, before: float, repeated: bool = False) -> Level:
    inside = values[first:end]
    return Level(first, end, float(np.median(inside)), _deviation(inside[:REFERENCE], before), repeated)


def _deviation(past: np.ndarray, before: float) -> float:
    """Of these nights; not below the level's before them as long as they are too few to say."""
    own = float(scale(past)) if len(past) else 0.0
    return own if len(past) >= NEEDED else max(own, before)


def _left(values: np.ndarray, start: int, night: int, before: float, rule: Rule) -> int | None:
    """Where the level ended, if this night completes a run outside its band."""
    for nights in range(1, RUN + 1):
        first = night - nights + 1
        if first - start < (1 if start else NEEDED):
            return None
        past = values[start:first][:REFERENCE]
        if rule.outside(past, _deviation(past, before), values[first : night + 1]):
            return split(values[start : night + 1], max(first - start - EARLIER, 1)) + start
    return None


def split(values: np.ndarray, earliest: int = 1) -> int:
    """First night of the second of two levels that leave the least absolute deviation."""
    places = range(earliest, len(values))
    return min(places, key=lambda one: _cost(values[:one]) + _cost(values[one:]))


def _cost(values: np.ndarray) -> float:
    return float(np.abs(values - np.median(values)).sum())


@dataclass(frozen=True)
class Standing:
    """Where a series stands tonight against its good past: `kind` is regression, improvement or ''."""

    kind: str
    since: int
    base: Level
    now: Level


def standing(found: list[Level], sign: float, least) -> Standing:
    """A worse level stays a regression until the series is back in the band of its good level, which only tightens."""
    base, opened, improved = found[0], None, None
    for level in found[1:]:
        worse = sign * (level.centre - base.centre)
        half = max(0.0 if level.repeated else OUTSIDE * base.deviation, float(least(base.centre)))
        if worse > half:
            opened, improved = opened or level, None
        elif worse < -half:
            base, opened, improved = level, None, level
        elif opened:
            opened, improved = None, level
    if opened:
        return Standing("regression", opened.first, base, found[-1])
    if improved:
        before = found[found.index(improved) - 1]
        return Standing("improvement", improved.first, before, found[-1])
    return Standing("", 0, base, found[-1])


def parted(values: np.ndarray, first: int) -> list[Level]:
    """Two levels, the second from this night on."""
    before = _level(values, 0, first, 0.0)
    return [before, _level(values, first, len(values), before.deviation)]


class Bands:
    """Bands of a night's figures, each worked out when it is asked for.

    Args:
        frame: the table of `load`.
        night: a night in it.

    Raises:
        UsageError: the night is not in the table.
    """

    def __init__(self, frame: pd.DataFrame, night: str):
        self.found = series(frame, stamps(frame, night))
        self.places = {key: place for place, key in enumerate(self.found.keys)}
        self.limits = limits(len(self.places))

    def get(self, key: tuple[str, str, str, str]) -> tuple[float, float] | None:
        """Of (cell, stage, mode, metric): around its good level; None where it is not judged or has too few nights."""
        if (place := self.places.get(key)) is None:
            return None
        values = self.found.values[:, place]
        values = values[~np.isnan(values)]
        if len(values) <= NEEDED:
            return None

        def least(centre) -> float:
            return float(self.found.least(np.asarray(centre), place))

        found = levels(values, Rule(least, self.found.quiet[place], self.limits))
        good = standing(found, float(self.found.sign[place]), least).base
        half = max(OUTSIDE * good.deviation, least(good.centre))
        return good.centre - half, good.centre + half
