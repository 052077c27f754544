"""Steps, drifts and quiet moves of every judged figure of a night."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from parity.history import drift, steps
from parity.history.again import Repeats, floor, spend
from parity.history.bands import NEEDED, OUTSIDE, limits
from parity.history.changes import RECENT, Change, Finding, between, lasting, told
from parity.history.series import Series

SIDE = 5
"""Nights on either side of a step that only the order of the nights shows."""


def findings(series: Series) -> Iterator[Finding]:
    """What the figures of tonight show against their own past."""
    count = series.values.shape[1]
    if not count:
        return
    dense, order, counts = steps.packed(series.values)
    significant = drift.significance(count)
    rule = steps.Rule(series.least, series.quiet, limits(count))
    repeats = _repeats(series, order, counts)
    chosen = steps.screen(dense, counts, rule) | drift.screen(dense, counts, significant)
    chosen[list(repeats)] = True
    for place in np.flatnonzero(chosen):
        figure = _Figure(series, place, dense[: counts[place], place], order[:, place], repeats.get(place))
        found = figure.judged(rule.limits, significant)
        chosen[place] = found is not None
        if found:
            yield found
    yield from _moved(series, dense, order, counts, chosen)


def _repeats(series: Series, order: np.ndarray, counts: np.ndarray) -> dict[int, Repeats]:
    """Series whose repeats within a night may show a step, by their number."""
    if not len(series.again):
        return {}
    spent, far, found = spend(series), floor(series.values.shape[1]), {}
    for place in np.flatnonzero((spent > 0).any(axis=0)):
        nights = order[: counts[place], place]
        drawn = tuple(one[~np.isnan(one)] for one in series.again[:, nights, place].T)
        one = Repeats(series.values[nights, place], drawn, spent[nights, place], far)
        if one.anywhere(lambda centre, place=place: series.least(np.asarray(centre), place)):
            found[int(place)] = one
    return found


class _Figure:
    """One series on its way to a finding."""

    def __init__(
        self, series: Series, place: int, values: np.ndarray, order: np.ndarray, repeats: Repeats | None = None
    ):
        self.series, self.place, self.values, self.order, self.repeats = series, place, values, order, repeats
        self.sign = float(series.sign[place])

    def least(self, centre) -> float:
        """The least half width of its band."""
        return float(self.series.least(np.asarray(centre), self.place))

    def judged(self, limits: np.ndarray, significant: float) -> Finding | None:
        """Its drift, or where it stands behind its steps."""
        if found := drift.trend(self.values, significant, self.least):
            worse = self.sign * (found.now - found.before) > 0
            half = max(OUTSIDE * found.deviation, self.least(found.before))
            return self._finding("drift" if worse else "improvement", found.first, found.before, found.now, half)
        levels = steps.levels(self.values, steps.Rule(self.least, self.series.quiet[self.place], limits), self.repeats)
        if len(levels) == 1:
            levels = self._shifted(levels, significant)
        stands = steps.standing(levels, self.sign, self.least)
        if not stands.kind:
            return None
        half = max(OUTSIDE * stands.base.deviation, self.least(stands.base.centre))
        return self._finding(stands.kind, stands.since, stands.base.centre, stands.now.centre, half)

    def _shifted(self, levels: list[steps.Level], significant: float) -> list[steps.Level]:
        """A step within the band that lasts so long that the order of the nights shows it."""
        for span in drift.SPANS:
            nights = self.values[-span:]
            place = steps.split(nights)
            rest = np.concatenate([side - np.median(side) for side in (nights[:place], nights[place:])])
            if len(nights) < drift.NEEDED or min(place, len(nights) - place) < SIDE:
                continue
            if abs(float(drift.kendall(nights[:, None])[0])) >= significant * np.sqrt(
                drift.inflation(rest, self.least(nights[0]))
            ):
                first = len(self.values) - len(nights) + place
                return steps.parted(self.values, first)
        return levels

    def _finding(self, kind, first: int, before: float, after: float, half: float) -> Finding | None:
        since = int(self.order[first])
        if kind == "improvement" and len(self.series.stamps) - since > RECENT:
            return None
        cell, stage, mode, metric = self.series.keys[self.place]
        when = told(since, int(self.order[first - 1]) if first else None, self.series.stamps)
        if kind == "drift":  # no one commit did it
            when["commits"] = (when["commits"][0] or when["commits"][1], self.series.stamps[-1].commit)
        change = Change(
            cell=cell, stage=stage, mode=mode, metric=metric, kind=kind, before=before, after=after,
            band=(before - half, before + half), nights=len(self.values) - first, sentence="", **when,
        )  # fmt: skip
        words = self._words(change)
        return Finding(self.place, since, abs(after - before) / max(half, 1e-30), replace(change, sentence=words))

    def _words(self, change: Change) -> str:
        unit, bound = self.series.unit[self.place], float(self.series.bound[self.place])
        what = f"{change.metric} of {change.stage}" + (f" ({change.mode})" if change.mode else "")
        how = {"drift": "drifts since about", "regression": "is worse since", "improvement": "is better since"}[
            change.kind
        ]
        band = f"band {change.band[0]:.4g} to {change.band[1]:.4g}"
        line = f"{change.cell}: {what} {how} {change.since_date} ({lasting(change.nights)}): "
        line += f"{change.before:.4g} to {change.after:.4g} {unit}, {band}; "
        line += f"over commits {' to '.join(change.commits)}" if change.kind == "drift" else between(change.commits)
        if change.kind != "improvement" and np.isfinite(bound):
            passes = self.sign * (change.after - bound) <= 0
            line += f"; {'still within' if passes else 'beyond'} its bound {bound:g}"
        return line


def _moved(
    series: Series, dense: np.ndarray, order: np.ndarray, counts: np.ndarray, known: np.ndarray
) -> Iterator[Finding]:
    """Figures that were the same bit for bit, and are another value since a night not long ago, within the least width."""
    with np.errstate(invalid="ignore"):
        differs = np.diff(dense, axis=0) != 0
    inside = np.arange(1, len(dense))[:, None] < counts
    last = np.where(differs & inside, np.arange(1, len(dense))[:, None], 0).max(axis=0, initial=0)
    rare = (differs & inside).sum(axis=0) <= np.maximum(counts // NEEDED, 1)
    for place in np.flatnonzero((last >= NEEDED) & rare & ~known):
        first = int(last[place])
        before, after = float(dense[first - 1, place]), float(dense[first, place])
        since = int(order[first, place])
        quiet = not differs[first - NEEDED : first - 1, place].any()
        if quiet and len(series.stamps) - since <= RECENT:
            yield _quiet(series, place, since, int(order[first - 1, place]), before, after, int(counts[place]) - first)


def _quiet(
    series: Series, place: int, since: int, last: int, before: float, after: float, nights: int
) -> Finding | None:
    cell, stage, mode, metric = series.keys[place]
    half = float(series.least(np.asarray(before), place))
    when = told(since, last, series.stamps)
    change = Change(
        cell=cell, stage=stage, mode=mode, metric=metric, kind="moved", before=before, after=after,
        band=(before - half, before + half), nights=nights, sentence="", **when,
    )  # fmt: skip
    words = (
        f"{cell}: {metric} of {stage} moved on {change.since_date}: {before:.6g} to {after:.6g} {series.unit[place]}, "
    )
    words += f"no more than another order of sums does (half width {half:.2g}); {between(change.commits)}"
    return Finding(place, since, abs(after - before), replace(change, sentence=words))
