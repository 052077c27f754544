"""Steps: where a figure left its noise band and stayed outside: a screen over all series, a walk along one; bands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from parity.history.repeats import NIGHTS, RepeatedSeries
from parity.history.series import Key, Least, series, stamps
from parity.history.statistics import NEEDED, OUTSIDE, RUN, Array, limits, scale, split, uncertainty

if TYPE_CHECKING:
    import pandas as pd

REFERENCE = 28
"""Nights a band is made from at the most: the first of a level. A band of every night would follow a slow drift."""

EARLIER = 3
"""Nights before the run outside in which the step itself may lie: a first night may have been inside by luck."""


def packed(values: Array) -> tuple[Array, Array, Array]:
    """[T, S] with each series' missing nights moved behind its values, the nights [T, S] they come from, counts [S]."""
    missing = np.isnan(values)
    order = np.argsort(missing, axis=0, kind="stable")
    return np.take_along_axis(values, order, axis=0), order, (~missing).sum(axis=0)


@dataclass(frozen=True)
class BandRule:
    """What counts as outside, for all series or for one.

    Attributes:
        least: a centre to the least half width of the band around it.
        quiet: the least standard deviation, as a share of that width: 0 where a device repeats bit for bit.
        limits: see `statistics.limits`.
    """

    least: Least
    quiet: Array
    limits: Array

    def outside(self, past: Array, deviation: Array | float, run: Array) -> Array:
        """Whether a run of nights [r, ...] is outside the band of its past [n, ...], and beyond all its values.

        What was there before is no news, however far from the centre: a figure that has two values has not changed.
        """
        centre = np.median(past, axis=0)
        least = self.least(centre)
        width = np.maximum(deviation, self.quiet * least) * uncertainty(len(past))
        half = np.maximum(self.limits[len(run) - 1] * width, least)
        above = run.min(axis=0) > np.maximum(centre + half, past.max(axis=0))
        return cast(Array, above | (run.max(axis=0) < np.minimum(centre - half, past.min(axis=0))))


def screen(dense: Array, counts: Array, rule: BandRule) -> Array:
    """[S] which series have a run of nights outside the band of the nights before it, anywhere; see `packed`."""
    outside = np.zeros(dense.shape[1], bool)
    total = int(counts.max(initial=0))
    for first in range(NEEDED, total):
        outside |= _run_outside(dense, counts, slice(max(0, first - REFERENCE), first), first, rule)
    for first in range(max(REFERENCE, total - RUN), total):  # a slow drift carries the nights just before along
        outside |= _run_outside(dense, counts, slice(0, REFERENCE), first, rule)
    return outside


def _run_outside(dense: Array, counts: Array, reference: slice, first: int, rule: BandRule) -> Array:
    past, outside = dense[reference], np.zeros(dense.shape[1], bool)
    with np.errstate(invalid="ignore"):
        deviation = scale(past)
        for nights in range(1, min(RUN, len(dense) - first) + 1):
            run = dense[first : first + nights]
            outside |= rule.outside(past, deviation, run) & (first + nights <= counts)
    return outside


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


def levels(values: Array, rule: BandRule, repeats: RepeatedSeries | None = None) -> list[Level]:
    """The levels of one series, one behind the other; `values` [n] without gaps."""
    ended: list[Level] = []
    start, deviation, repeated = 0, 0.0, False
    for night in range(NEEDED, len(values)):
        first, by_repeats = _left(values, start, night, deviation, rule), False
        if first is None and repeats:
            first = _repeated(repeats, start, night, rule)
            by_repeats = first is not None
        if first is not None:
            ended.append(_level(values, start, first, deviation, repeated))
            start, deviation, repeated = first, ended[-1].deviation, by_repeats
    return [*ended, _level(values, start, len(values), deviation, repeated)]


def _repeated(repeats: RepeatedSeries, start: int, night: int, rule: BandRule) -> int | None:
    """Where the level ended, if this night's repeats show it."""
    firsts = range(night, max(night - NIGHTS, start), -1)
    return next((first for first in firsts if repeats.shown(start, first, night, rule.least)), None)


def _level(values: Array, first: int, end: int, before: float, repeated: bool = False) -> Level:
    inside = values[first:end]
    return Level(first, end, float(np.median(inside)), _deviation(inside[:REFERENCE], before), repeated)


def _deviation(past: Array, before: float) -> float:
    """Of these nights; not below the level's before them as long as they are too few to say."""
    own = float(scale(past)) if len(past) else 0.0
    return own if len(past) >= NEEDED else max(own, before)


def _left(values: Array, start: int, night: int, before: float, rule: BandRule) -> int | None:
    """Where the level ended, if this night completes a run outside its band."""
    for nights in range(1, RUN + 1):
        first = night - nights + 1
        if first - start < (1 if start else NEEDED):
            return None
        past = values[start:first][:REFERENCE]
        if rule.outside(past, _deviation(past, before), values[first : night + 1]):
            return split(values[start : night + 1], max(first - start - EARLIER, 1)) + start
    return None


@dataclass(frozen=True)
class StepState:
    """Where a series is tonight, compared with its good past; `kind` is None where it is as good."""

    kind: Literal["regression", "improvement"] | None
    since: int
    base: Level
    now: Level


def step_state(ordered: list[Level], sign: float, least: Least) -> StepState:
    """A worse level stays a regression until the series is back in the band of its good level, which only tightens."""
    base = ordered[0]
    opened: Level | None = None
    improved: Level | None = None
    for level in ordered[1:]:
        worse = sign * (level.centre - base.centre)
        half = max(0.0 if level.repeated else OUTSIDE * base.deviation, float(least(base.centre)))
        if worse > half:
            opened, improved = opened or level, None
        elif worse < -half:
            base, opened, improved = level, None, level
        elif opened:
            opened, improved = None, level
    if opened:
        return StepState("regression", opened.first, base, ordered[-1])
    if improved:
        before = ordered[ordered.index(improved) - 1]
        return StepState("improvement", improved.first, before, ordered[-1])
    return StepState(None, 0, base, ordered[-1])


def parted(values: Array, first: int) -> list[Level]:
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
        self.series = series(frame, stamps(frame, night))
        self.places = {key: place for place, key in enumerate(self.series.keys)}
        self.limits = limits(len(self.places))

    def get(self, key: Key) -> tuple[float, float] | None:
        """Of (cell, stage, mode, metric): around its good level; None where it is not judged or has too few nights."""
        if (place := self.places.get(key)) is None:
            return None
        values = self.series.values[:, place]
        values = values[~np.isnan(values)]
        if len(values) <= NEEDED:
            return None

        def least(centre: Array | float) -> Array:
            return self.series.least(centre, place)

        ordered = levels(values, BandRule(least, self.series.quiet[place], self.limits))
        good = step_state(ordered, float(self.series.sign[place]), least).base
        half = max(OUTSIDE * good.deviation, float(least(good.centre)))
        return good.centre - half, good.centre + half
