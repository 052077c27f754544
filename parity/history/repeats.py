"""Cells measured again within a night: whether a figure asks for it, and what the repeats show.

A repeat is the same cell once more, in a process of its own. It draws anew what differs from run to run, and nothing
else: what a night holds (machine, versions, threads) is the same in all of its repeats. Two noises, then, and a guard
for each:

- from run to run: Mann and Whitney's test of the repeats against the nights before, exact, whatever the noise is like.
  The figure's own first value chose the cell to be repeated and is left out of the test, so its being extreme costs
  nothing;
- from night to night: the repeats' level has to be further than night effects go that hold `HELD` of the variance. Who
  holds more is told from pairs (a night's first value and its repeat): their figures are judged by whole nights, as
  before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from parity.compare.report import PASS, WARN
from parity.errors import UsageError
from parity.history.schema import moment, table
from parity.history.series import WINDOW, Least, Series, series, stamps
from parity.history.statistics import ALARMS, NEEDED, Array, chance, core, normal_limit, uncertainty
from parity.history.store import load
from parity.nightly.records import CellResult, Night

if TYPE_CHECKING:
    import pandas as pd

MOST = 16
"""Repeats of a cell in one night: with 20 nights before, 16 of them show a step past one outlier on either side."""

NIGHTS = 3
"""Nights whose repeats are taken together; a longer run shows without repeats."""

SUSPECT = (2.8, 2.2, 1.6)
"""Deviations of the mean of 1, 2, 3 nights that ask for a repeat. This decides what is measured, not what is told."""

PAIRS = 10
"""Nights with a repeat before a figure's noise is known to be the run's."""

LEARNT, SAME = 20, 3
"""Pairs that a cell is asked for at first; one that repeats bit for bit has told after three."""

LAGS = (1, 2, 3)
"""Nights are compared with the next three: near enough that a step parts few of them."""

EARLIER = 2
"""Nights before a cell is measured again to learn: who runs one night or two wants no history."""

HELD = 1 / 5
"""Share of a figure's variance that a night may hold."""

ALIKE, ALIKE_ALONE = 0.9, 0.65
"""Repeats differ by this share of what nights differ by, at the least: the median figure of a cell, sqrt(1 - HELD),
and each figure alone, whose ratio of 20 pairs is off by a fifth."""

LOOKBACK = 60
"""Nights before that the repeats are compared with: more of them make less likely chances provable."""


@dataclass(frozen=True)
class RepeatedSeries:
    """One series with its repeats.

    Attributes:
        values: [n] a night's first value each.
        again: [n] arrays, of what its repeats found; most are empty.
        level: [n] what a test may spend on each of these nights.
        floor: deviations, see `floor`.
    """

    values: Array
    again: tuple[Array, ...]
    level: Array
    floor: float

    def shown(self, start: int, first: int, night: int, least: Least) -> bool:
        """Whether the repeats of nights `first` to `night` show a step from the level that began at `start`."""
        nights, past = night - first + 1, self.values[max(start, first - LOOKBACK) : first]
        if nights > NIGHTS or len(past) < NEEDED or not len(self.again[night]):
            return False
        run = self.values[first : night + 1]
        centre, drawn = float(np.median(past)), self.again[first : night + 1]
        distance, deviation = float(run.mean() - centre), float(core(past))
        side = float(np.sign(distance))
        if side * (np.median(drawn[-1]) - centre) <= 0 or abs(distance) < SUSPECT[nights - 1] * deviation:
            return False
        held = [float(np.median(values)) if len(values) else float(own) for values, own in zip(drawn, run, strict=True)]
        shift = side * (float(np.mean(held)) - centre)
        if shift <= max(self.floor / np.sqrt(nights) * deviation * uncertainty(len(past)), float(least(centre))):
            return False
        return bool(chance(side * past, side * np.concatenate(drawn)) <= self.level[night])

    def anywhere(self, least: Least) -> bool:
        """Whether the repeats of any night show a step from what was before: worth a walk along the nights."""
        asked = np.flatnonzero(self.level).tolist()
        return any(self.shown(0, first, night, least) for night in asked for first in range(night, night - NIGHTS, -1))


def floor(count: int) -> float:
    """Deviations that a night's effect stays within, among so many series: normal, with `HELD` of the variance."""
    return float(normal_limit(ALARMS / max(count, 1)) * np.sqrt(HELD))


def suspects(series: Series, night: int, chosen: Array) -> Array:
    """Of these figures' numbers, those whose nights up to this one ask for a repeat."""
    values = series.values[: night + 1, chosen]
    whole = ~np.isnan(values).any(axis=0)
    alone = np.flatnonzero(~whole & ~np.isnan(values[-1]))
    groups = [whole, *(np.arange(len(chosen)) == place for place in alone)]
    return np.concatenate([chosen[group][_asks(series, values[:, group], chosen[group])] for group in groups])


def _asks(series: Series, values: Array, places: Array) -> Array:
    """[S] of nights [T, S], which lack the same ones."""
    values, asks = values[~np.isnan(values).any(axis=1)][-LOOKBACK - NIGHTS :], np.zeros(len(places), bool)
    for nights in range(1, NIGHTS + 1):
        if len(past := values[:-nights]) >= NEEDED:
            centre = np.median(past, axis=0)
            distance = np.abs(values[-nights:].mean(axis=0) - centre)
            asks |= (distance >= series.least(centre, places) / 2) & (distance >= SUSPECT[nights - 1] * core(past))
    return asks


def fresh(series: Series) -> Array:
    """[S] figures whose repeats differ as much as nights do: their noise is the run's, and repeats average it."""
    own_noise = np.zeros(series.values.shape[1], bool)
    if not len(series.again):
        return own_noise
    nights = [np.abs(series.values[lag:] - series.values[:-lag]) for lag in LAGS if lag < len(series.values)]
    between, within = np.concatenate(nights), np.abs(series.again[0] - series.values)
    most = np.quantile(np.nan_to_num(between), 0.9, axis=0)  # what an outlier counts for at the most
    pairs = (~np.isnan(within)).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = _mean(np.minimum(within, most)) / _mean(np.minimum(between, most))
    known = np.isfinite(ratio) & (pairs >= PAIRS)
    for cell in series.cells.values():
        own = cell[known[cell]]
        if len(own) and np.median(ratio[own]) >= ALIKE:
            own_noise[own] = ratio[own] >= ALIKE_ALONE
    return own_noise


def _mean(values: Array) -> Array:
    counts = (~np.isnan(values)).sum(axis=0)
    return np.where(counts > 0, np.nansum(values, axis=0) / np.maximum(counts, 1), np.nan)


def spend(series: Series) -> Array:
    """[T, S] what a test of a night's repeats may spend: `ALARMS` a night, shared by cells, suspects, repeats, runs."""
    spent, known = np.zeros(series.values.shape), fresh(series)
    if not known.any():
        return spent
    for cell in series.cells.values():
        repeated = ~np.isnan(series.again[0][:, cell]).all(axis=1)
        for night in np.flatnonzero(repeated).tolist():
            if night >= NEEDED:
                asked = suspects(series, night, cell[known[cell]])
                spent[night, asked] = _level(len(asked), len(series.cells))
    return spent


def _level(suspected: int, cells: int) -> float:
    return ALARMS / (max(suspected, 1) * cells * MOST * NIGHTS)


def another(series: Series, cells: int) -> bool:
    """Whether tonight's cell is to be measured once more, after the repeats that it has had.

    Args:
        series: this cell's figures, with its repeats so far.
        cells: of the night.
    """
    if not series.keys:
        return False
    had = int((~np.isnan(series.again[:, -1])).any(axis=1).sum())
    if had == 0 and _learns(series):
        return True
    if not (asked := suspects(series, len(series.values) - 1, np.arange(len(series.keys)))).size:
        return False
    asked = asked[fresh(series)[asked]]
    level, most = _level(len(asked), cells), floor(len(series.keys) * cells)
    return had < MOST and any(_open(series, place, had, level, most) for place in asked.tolist())


def _learns(series: Series) -> bool:
    """Whether it is not known yet what the cell's repeats are worth; one that repeats bit for bit has told soon."""
    if len(series.values) <= EARLIER:
        return False
    if not len(series.again):
        return True
    pairs = ~np.isnan(series.again[0])
    nights = int(pairs.any(axis=1).sum())
    differ = (pairs & (series.again[0] != series.values)).any(axis=0)
    return bool(nights < SAME or (nights < LEARNT and differ.mean() > 1 / 5))


def _open(series: Series, place: int, had: int, level: float, floor: float) -> bool:
    """Whether a suspect is neither cleared by its repeats nor shown by them."""
    if not had:
        return True
    has = ~np.isnan(series.values[:, place])
    values, drawn = series.values[has, place], tuple(row[~np.isnan(row)] for row in series.again[:, has, place].T)
    past, night = values[-LOOKBACK - 1 : -1], len(values) - 1
    centre = np.median(past)
    if (np.median(drawn[-1]) - centre) * np.sign(values[night] - centre) < SUSPECT[-1] * core(past):
        return False
    levels = np.where(np.arange(len(values)) == night, level, 0.0)
    return not RepeatedSeries(values, drawn, levels, floor).anywhere(lambda centre: series.least(centre, place))


class Suspicion:
    """Which cells of a night are measured again: asks history, read once, about each result as it comes.

    Args:
        url: of the history that the night will be appended to. One that is not there, or cannot be read, suspects
            nothing: the end of the night says so.
        night: the night that runs.
        most: repeats of a cell.
    """

    def __init__(self, url: str, night: Night, most: int):
        self.night, self.most = night, most
        self.frame: pd.DataFrame | None
        try:
            frame = load(url, last=WINDOW, repeats=True)
            self.frame = frame[frame["night"] != night.name]
        except UsageError:
            self.frame = None

    def __call__(self, results: tuple[CellResult, ...]) -> bool:
        """Whether the cell of these results is measured once more; what did not end well needs no statistics."""
        ended_well = all(result.verdict in (PASS, WARN) for result in results)
        if self.frame is None or len(results) > self.most or not ended_well:
            return False
        return suspicious(self.frame, self.night, results)


def suspicious(frame: pd.DataFrame, night: Night, results: Sequence[CellResult]) -> bool:
    """Whether a cell of a night that is not recorded yet is measured once more.

    Args:
        frame: the nights before, with their repeats.
        results: of the cell, and of its repeats so far.
    """
    import pandas as pd

    tonight = table(night, results).to_pandas().assign(date=moment(night.started).date().isoformat())
    past = frame[frame["cell"] == results[0].cell.name]
    shared = [name for name in tonight.columns if name in past.columns]
    text = {name: str for name in shared if tonight[name].dtype == "category"}
    whole = pd.concat([rows[shared].astype(text) for rows in (past, tonight)], ignore_index=True)
    return another(series(whole, stamps(whole, night.name)), len(night.cells))
