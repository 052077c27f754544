"""Cells measured again within a night: whether a figure asks for it, and what the repeats show.

A repeat is the same cell once more, in a process of its own. It draws anew what differs from run to run, and nothing else: what
a night holds (machine, versions, threads) is the same in all of its repeats. Two noises, then, and a guard for each:

- from run to run: Mann and Whitney's test of the repeats against the nights before, exact, whatever the noise is like. The
  figure's own first value chose the cell to be repeated and is left out of the test, so its being extreme costs nothing;
- from night to night: the repeats' level has to be further than night effects go that hold `HELD` of the variance. Who holds
  more is told from pairs (a night's first value and its repeat): their figures are judged by whole nights, as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from parity.history.bands import ALARMS, NEEDED, core, uncertainty

if TYPE_CHECKING:
    from parity.history.series import Series

MOST = 16
"""Repeats of a cell in one night: with 20 nights before, 16 of them show a step past one outlier on either side."""

NIGHTS = 3
"""Nights whose repeats are taken together; a longer run shows by itself."""

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
"""Repeats differ by this share of what nights differ by, at the least: the median figure of a cell, sqrt(1 - HELD), and each
figure alone, whose ratio of 20 pairs is off by a fifth."""

LOOKBACK = 60
"""Nights before that the repeats are compared with: more of them make less likely chances provable."""


@dataclass(frozen=True)
class Repeats:
    """One series with its repeats.

    Attributes:
        values: [n] a night's first value each.
        again: [n] arrays, of what its repeats found; most are empty.
        level: what a test may spend on each of these nights.
        floor: deviations, see `floor`.
    """

    values: np.ndarray
    again: tuple[np.ndarray, ...]
    level: np.ndarray
    floor: float

    def shown(self, start: int, first: int, night: int, least) -> bool:
        """Whether the repeats of nights `first` to `night` show a step from the level that began at `start`."""
        nights, past = night - first + 1, self.values[max(start, first - LOOKBACK) : first]
        if nights > NIGHTS or len(past) < NEEDED or not len(self.again[night]):
            return False
        run = self.values[first : night + 1]
        centre, drawn = float(np.median(past)), self.again[first : night + 1]
        far = float(run.mean() - centre)
        side = np.sign(far)
        if side * (np.median(drawn[-1]) - centre) <= 0 or abs(far) < SUSPECT[nights - 1] * (
            deviation := float(core(past))
        ):
            return False
        held = [float(np.median(one)) if len(one) else value for one, value in zip(drawn, run, strict=True)]
        shift = side * (float(np.mean(held)) - centre)
        if shift <= max(self.floor / np.sqrt(nights) * deviation * uncertainty(len(past)), float(least(centre))):
            return False
        return chance(side * past, side * np.concatenate(drawn)) <= self.level[night]

    def anywhere(self, least) -> bool:
        """Whether the repeats of any night show a step from what was before: worth a walk along the nights."""
        asked = np.flatnonzero(self.level)
        return any(self.shown(0, first, night, least) for night in asked for first in range(night, night - NIGHTS, -1))


def floor(series: int) -> float:
    """Deviations that a night's effect stays within, among this many series: normal, with `HELD` of the variance."""
    from scipy.special import ndtri

    return float(-ndtri(ALARMS / max(series, 1)) * np.sqrt(HELD))


def chance(past: np.ndarray, drawn: np.ndarray) -> float:
    """How likely it is that values of one distribution lie as high above the past as these, or higher; ties count against.

    Mann and Whitney (1947): of all orders of n + m values, those with as few pairs the other way round.
    """
    pairs = int((past[:, None] >= drawn[None, :]).sum())
    return _share(len(past), len(drawn), pairs) if 2 * pairs < len(past) * len(drawn) else 1.0


@lru_cache(maxsize=4096)
def _share(past: int, drawn: int, pairs: int) -> float:
    """Gauss's binomial coefficient up to this degree, of the binomial coefficient."""
    counts = np.zeros(pairs + 1)
    counts[0] = orders = 1.0
    for one in range(1, drawn + 1):
        orders *= (past + one) / one
        if past + one <= pairs:
            counts[past + one :] -= counts[: pairs + 1 - past - one].copy()
        for rest in range(min(one, pairs + 1)):
            counts[rest::one] = np.cumsum(counts[rest::one])
    return float(min(counts.sum() / orders, 1.0))


def suspects(series: Series, night: int, chosen: np.ndarray) -> np.ndarray:
    """Of these figures' numbers, those whose nights up to this one ask for a repeat."""
    values = series.values[: night + 1, chosen]
    whole = ~np.isnan(values).any(axis=0)
    groups = [whole, *(np.arange(len(chosen)) == one for one in np.flatnonzero(~whole & ~np.isnan(values[-1])))]
    return np.concatenate([chosen[one][_asks(series, values[:, one], chosen[one])] for one in groups])


def _asks(series: Series, values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """[S] of nights [T, S], which lack the same ones."""
    values, found = values[~np.isnan(values).any(axis=1)][-LOOKBACK - NIGHTS :], np.zeros(len(places), bool)
    for nights in range(1, NIGHTS + 1):
        if len(past := values[:-nights]) >= NEEDED:
            centre = np.median(past, axis=0)
            far = np.abs(values[-nights:].mean(axis=0) - centre)
            found |= (far >= series.least(centre, places) / 2) & (far >= SUSPECT[nights - 1] * core(past))
    return found


def fresh(series: Series) -> np.ndarray:
    """[S] figures whose repeats differ as much as nights do: their noise is the run's, and repeats average it."""
    count = series.values.shape[1]
    if not len(series.again):
        return np.zeros(count, bool)
    nights = [np.abs(series.values[lag:] - series.values[:-lag]) for lag in LAGS if lag < len(series.values)]
    between, within = np.concatenate(nights), np.abs(series.again[0] - series.values)
    most = np.quantile(np.nan_to_num(between), 0.9, axis=0)  # what an outlier counts for at the most
    pairs = (~np.isnan(within)).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = _mean(np.minimum(within, most)) / _mean(np.minimum(between, most))
    known = np.isfinite(ratio) & (pairs >= PAIRS)
    found = np.zeros(count, bool)
    for cell in series.cells.values():
        mine = cell[known[cell]]
        if len(mine) and np.median(ratio[mine]) >= ALIKE:
            found[mine] = ratio[mine] >= ALIKE_ALONE
    return found


def _mean(values: np.ndarray) -> np.ndarray:
    counts = (~np.isnan(values)).sum(axis=0)
    return np.where(counts > 0, np.nansum(values, axis=0) / np.maximum(counts, 1), np.nan)


def spend(series: Series) -> np.ndarray:
    """[T, S] what a test of a night's repeats may spend: 1/3000 a night, shared by cells, suspects, repeats and runs."""
    spent, known = np.zeros(series.values.shape), fresh(series)
    if not known.any():
        return spent
    for cell in series.cells.values():
        repeated = ~np.isnan(series.again[0][:, cell]).all(axis=1)
        for night in np.flatnonzero(repeated):
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
    level = _level(len(asked), cells)
    return had < MOST and any(_open(series, place, had, level, floor(len(series.keys) * cells)) for place in asked)


def _learns(series: Series) -> bool:
    """Whether it is not known yet what the cell's repeats are worth; one that repeats bit for bit has told soon."""
    if len(series.values) <= EARLIER:
        return False
    if not len(series.again):
        return True
    pairs = ~np.isnan(series.again[0])
    nights = int(pairs.any(axis=1).sum())
    differ = (pairs & (series.again[0] != series.values)).any(axis=0)
    return nights < SAME or (nights < LEARNT and differ.mean() > 1 / 5)


def _open(series: Series, place: int, had: int, level: float, far: float) -> bool:
    """Whether a suspect is neither cleared by its repeats nor shown by them."""
    if not had:
        return True
    there = ~np.isnan(series.values[:, place])
    values, drawn = series.values[there, place], tuple(one[~np.isnan(one)] for one in series.again[:, there, place].T)
    past, night = values[-LOOKBACK - 1 : -1], len(values) - 1
    centre = np.median(past)
    if (np.median(drawn[-1]) - centre) * np.sign(values[night] - centre) < SUSPECT[-1] * core(past):
        return False
    levels = np.where(np.arange(len(values)) == night, level, 0.0)
    return not Repeats(values, drawn, levels, far).anywhere(lambda centre: series.least(np.asarray(centre), place))
