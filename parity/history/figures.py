"""Steps, drifts and quiet moves of every judged figure of a night."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from parity.history import steps
from parity.history.changes import RECENT, Change, ChangeKind, Dated, Observed, between, lasting
from parity.history.repeats import RepeatedSeries, floor, spend
from parity.history.series import Least, Series
from parity.history.statistics import (
    NEEDED,
    OUTSIDE,
    SPANS,
    Array,
    inflation,
    kendall,
    limits,
    line,
    scale,
    significance,
    split,
    spread,
)

SIDE = 5
"""Nights on either side of a step that only the order of the nights shows."""


def figure_changes(series: Series) -> Iterator[Observed]:
    """What the figures of tonight show against their own past."""
    count = series.values.shape[1]
    if not count:
        return
    dense, order, counts = steps.packed(series.values)
    significant = significance(count)
    rule = steps.BandRule(series.least, series.quiet, limits(count))
    repeats = _repeats(series, order, counts)
    suspected = steps.screen(dense, counts, rule) | drift_screen(dense, counts, significant)
    suspected[list(repeats)] = True
    told = np.zeros(count, bool)
    for place in np.flatnonzero(suspected).tolist():
        figure = _FigurePast(series, place, dense[: counts[place], place], order[:, place], repeats.get(place))
        if observed := figure.judged(rule.limits, significant):
            told[place] = True
            yield observed
    yield from _moved(series, dense, order, counts, told)


def _repeats(series: Series, order: Array, counts: Array) -> dict[int, RepeatedSeries]:
    """Series whose repeats within a night may show a step, by their number."""
    if not len(series.again):
        return {}
    spent, night_effect, shown = spend(series), floor(series.values.shape[1]), {}
    for place in np.flatnonzero((spent > 0).any(axis=0)).tolist():
        nights = order[: counts[place], place]
        drawn = tuple(row[~np.isnan(row)] for row in series.again[:, nights, place].T)
        repeated = RepeatedSeries(series.values[nights, place], drawn, spent[nights, place], night_effect)
        if repeated.anywhere(_least(series, place)):
            shown[place] = repeated
    return shown


def _least(series: Series, place: int) -> Least:
    return lambda centre: series.least(centre, place)


class _FigurePast:
    """One series on its way to a change."""

    def __init__(self, series: Series, place: int, values: Array, order: Array, repeats: RepeatedSeries | None = None):
        self.series, self.place, self.values, self.order, self.repeats = series, place, values, order, repeats
        self.sign, self.least = float(series.sign[place]), _least(series, place)

    def judged(self, limits: Array, significant: float) -> Observed | None:
        """Its drift, or where it stands behind its steps."""
        if drift := drift_of(self.values, significant, self.least):
            worse = self.sign * (drift.now - drift.before) > 0
            half = max(OUTSIDE * drift.deviation, float(self.least(drift.before)))
            return self._observed("drift" if worse else "improvement", drift.first, drift.before, drift.now, half)
        rule = steps.BandRule(self.least, self.series.quiet[self.place], limits)
        levels = steps.levels(self.values, rule, self.repeats)
        if len(levels) == 1:
            levels = self._shifted(levels, significant)
        state = steps.step_state(levels, self.sign, self.least)
        if state.kind is None:
            return None
        half = max(OUTSIDE * state.base.deviation, float(self.least(state.base.centre)))
        return self._observed(state.kind, state.since, state.base.centre, state.now.centre, half)

    def _shifted(self, levels: list[steps.Level], significant: float) -> list[steps.Level]:
        """A step within the band that lasts so long that the order of the nights shows it."""
        for span in SPANS:
            nights = self.values[-span:]
            place = split(nights)
            residuals = np.concatenate([side - np.median(side) for side in (nights[:place], nights[place:])])
            if len(nights) < NEEDED or min(place, len(nights) - place) < SIDE:
                continue
            needed = significant * np.sqrt(inflation(residuals, float(self.least(nights[0]))))
            if abs(float(kendall(nights[:, None])[0])) >= needed:
                return steps.parted(self.values, len(self.values) - len(nights) + place)
        return levels

    def _observed(self, kind: ChangeKind, first: int, before: float, after: float, half: float) -> Observed | None:
        since, stamps = int(self.order[first]), self.series.stamps
        if kind == "improvement" and len(stamps) - since > RECENT:
            return None
        dated = Dated(since, int(self.order[first - 1]) if first else None, stamps)
        commits = dated.commits
        if kind == "drift":  # no one commit did it
            commits = (commits[0] or commits[1], stamps[-1].commit)
        change = _change(self.series, self.place, kind, dated, before, after, half, len(self.values) - first)
        change = replace(change, commits=commits)
        size = abs(after - before) / max(half, 1e-30)
        return Observed(self.place, since, size, replace(change, sentence=self._sentence(change)))

    def _sentence(self, change: Change) -> str:
        unit, bound = self.series.unit[self.place], float(self.series.bound[self.place])
        what = f"{change.metric} of {change.stage}" + (f" ({change.mode})" if change.mode else "")
        how = {"drift": "drifts since about", "regression": "is worse since", "improvement": "is better since"}[
            change.kind
        ]
        band = f"band {change.band[0]:.4g} to {change.band[1]:.4g}"
        text = f"{change.cell}: {what} {how} {change.since_date} ({lasting(change.nights)}): "
        text += f"{change.before:.4g} to {change.after:.4g} {unit}, {band}; "
        text += f"over commits {' to '.join(change.commits)}" if change.kind == "drift" else between(change.commits)
        if change.kind != "improvement" and np.isfinite(bound):
            passes = self.sign * (change.after - bound) <= 0
            text += f"; {'still within' if passes else 'beyond'} its bound {bound:g}"
        return text


def _change(
    series: Series, place: int, kind: ChangeKind, dated: Dated, before: float, after: float, half: float, nights: int
) -> Change:
    """A change of one figure, without its sentence."""
    cell, stage, mode, metric = series.keys[place]
    return Change(
        cell=cell, stage=stage, mode=mode, metric=metric, kind=kind, before=before, after=after,
        band=(before - half, before + half), nights=nights, sentence="",
        since_night=dated.night, since_date=dated.date, commits=dated.commits,
    )  # fmt: skip


def _moved(series: Series, dense: Array, order: Array, counts: Array, told: Array) -> Iterator[Observed]:
    """Figures that were the same bit for bit, and have another value since a recent night, within the least width."""
    with np.errstate(invalid="ignore"):
        differs = np.diff(dense, axis=0) != 0
    inside = np.arange(1, len(dense))[:, None] < counts
    last = np.where(differs & inside, np.arange(1, len(dense))[:, None], 0).max(axis=0, initial=0)
    rare = (differs & inside).sum(axis=0) <= np.maximum(counts // NEEDED, 1)
    for place in np.flatnonzero((last >= NEEDED) & rare & ~told).tolist():
        first = int(last[place])
        quiet = not differs[first - NEEDED : first - 1, place].any()
        since = int(order[first, place])
        if quiet and len(series.stamps) - since <= RECENT:
            dated = Dated(since, int(order[first - 1, place]), series.stamps)
            before, after = float(dense[first - 1, place]), float(dense[first, place])
            yield _quiet(series, place, dated, before, after, int(counts[place]) - first)


def _quiet(series: Series, place: int, dated: Dated, before: float, after: float, nights: int) -> Observed:
    half = float(series.least(before, place))
    change = _change(series, place, "moved", dated, before, after, half, nights)
    sentence = f"{change.cell}: {change.metric} of {change.stage} moved on {change.since_date}: "
    sentence += f"{before:.6g} to {after:.6g} {series.unit[place]}, no more than another order of sums does "
    sentence += f"(half width {half:.2g}); {between(change.commits)}"
    return Observed(place, dated.since, abs(after - before), replace(change, sentence=sentence))


@dataclass(frozen=True)
class Drift:
    """A drift from `first` on: the line's values there and tonight, and the deviation around it."""

    first: int
    before: float
    now: float
    deviation: float


def drift_screen(dense: Array, counts: Array, significant: float) -> Array:
    """[S] which series rise or fall steadily over a span, order alone considered: heavy tails do not matter.

    Series of equal length are taken together; see `steps.packed`.
    """
    steady = np.zeros(dense.shape[1], bool)
    for count in np.unique(counts[counts >= NEEDED]):
        same = counts == count
        for span in {min(span, int(count)) for span in SPANS}:
            steady[same] |= np.abs(kendall(dense[count - span : count, same])) >= significant
    return steady


def drift_of(values: Array, significant: float, least: Least) -> Drift | None:
    """The drift of one series without gaps up to its last night, or None.

    It has to be significant after what the nights have in common with the night before, explain the values better than
    one step, and have gone further than the noise around the line and the least width of a band.
    """
    for span in dict.fromkeys(min(span, len(values)) for span in SPANS):
        nights, offset = values[len(values) - span :], len(values) - span
        if span < NEEDED or (steadiness := abs(float(kendall(nights[:, None])[0]))) < significant:
            continue
        slope, start = line(nights)
        residuals = nights - (start + slope * np.arange(span))
        if steadiness < significant * np.sqrt(inflation(residuals, float(least(start)))):
            continue
        drift = _begun(nights, offset)
        needed = max(OUTSIDE * drift.deviation, float(least(drift.before)))
        if abs(drift.now - drift.before) > needed and _drift_cost(nights, drift, offset) < _step_cost(nights):
            return drift
    return None


def _begun(nights: Array, offset: int) -> Drift:
    """Level, then a slope from some night on: the night that leaves the least absolute deviation."""
    hinges = (_hinge(nights, knot) for knot in range(len(nights) - 5))
    _, knot, level, slope = min(hinges, key=lambda hinge: hinge[0])
    residuals = nights - _bent(len(nights), knot, level, slope)
    return Drift(offset + knot, level, level + slope * (len(nights) - 1 - knot), float(scale(residuals)))


def _hinge(nights: Array, knot: int) -> tuple[float, int, float, float]:
    """Cost, knot, level and slope of a level that bends at this night."""
    level = float(np.median(nights[: knot + 1])) if knot else line(nights)[1]
    ahead = np.arange(1, len(nights) - knot)
    slope = float(np.median((nights[knot + 1 :] - level) / ahead))
    return _cost(nights, knot, level, slope), knot, level, slope


def _bent(nights: int, knot: int, level: float, slope: float) -> Array:
    return level + slope * np.clip(np.arange(nights) - knot, 0, None)


def _cost(nights: Array, knot: int, level: float, slope: float) -> float:
    return float(np.abs(nights - _bent(len(nights), knot, level, slope)).sum())


def _drift_cost(nights: Array, drift: Drift, offset: int) -> float:
    knot = drift.first - offset
    return _cost(nights, knot, drift.before, (drift.now - drift.before) / max(len(nights) - 1 - knot, 1))


def _step_cost(nights: Array) -> float:
    place = split(nights)
    return spread(nights[:place]) + spread(nights[place:])
