"""The table as series: each judged figure of tonight with its own past, night by night."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parity.errors import UsageError
from parity.history.bands import HALF_WIDTHS, QUIET, Width

if TYPE_CHECKING:
    import pandas as pd

WINDOW = 90
"""Nights looked back: a step is told while a night before it is in the window."""

SHORT = 10
"""Digits of a commit that a reader is shown."""

NAMES = ("cell", "stage", "mode", "metric")


@dataclass(frozen=True)
class Stamp:
    """One night: its name, date, and commit as a reader names it."""

    night: str
    date: str
    commit: str


@dataclass(frozen=True)
class Series:
    """S judged figures of tonight over T nights.

    Attributes:
        stamps: [T] nights, oldest first; the last is tonight.
        keys: [S] (cell, stage, mode, metric) in the order in which tonight found them: dataflow order within a cell.
        values: [T, S] float64; NaN where a night has none. Tonight's are all there.
        sign: [S] 1 where lower is better, -1 where higher is.
        absolute, share: [S] the least half width of a band, and the same as a share of its centre.
        quiet: [S] the least standard deviation, as a share of that width; 0 in a cell that repeats bit for bit.
        bound: [S] what still passes, NaN where nothing is bounded; unit: [S].
        again: [R, T, S] what repeats within a night found, NaN where there are none; R = 0 without any.
    """

    stamps: tuple[Stamp, ...]
    keys: list[tuple[str, str, str, str]]
    values: np.ndarray
    sign: np.ndarray
    absolute: np.ndarray
    share: np.ndarray
    quiet: np.ndarray
    bound: np.ndarray
    unit: list[str]
    again: np.ndarray

    @property
    def cells(self) -> dict[str, np.ndarray]:
        """The numbers of each cell's series."""
        names, codes = (
            np.unique([cell for cell, *_ in self.keys], return_inverse=True) if self.keys else ((), np.zeros(0))
        )
        return {str(name): np.flatnonzero(codes == code) for code, name in enumerate(names)}

    def least(self, centre: np.ndarray, chosen=slice(None)) -> np.ndarray:
        """The least half width around these centres."""
        return np.maximum(self.absolute[chosen], self.share[chosen] * np.abs(centre))


def stamps(frame: pd.DataFrame, night: str) -> tuple[Stamp, ...]:
    """The nights up to this one, at most `WINDOW`.

    Raises:
        UsageError: the night is not in the table.
    """
    first = frame.drop_duplicates("night").sort_values(["started", "night"], kind="stable")
    names = [str(name) for name in first["night"]]
    if night not in names:
        raise UsageError(f"night {night} is not in this history")
    rows = first.iloc[: names.index(night) + 1].iloc[-WINDOW:]
    found = zip(rows["night"], rows["date"], rows["commit"], rows["dirty"], strict=True)
    return tuple(Stamp(str(name), str(date), _commit(str(commit), bool(dirty))) for name, date, commit, dirty in found)


def _commit(commit: str, dirty: bool) -> str:
    return f"{commit[:SHORT] or 'unknown'}{'-dirty' if dirty else ''}"


def series(frame: pd.DataFrame, nights: tuple[Stamp, ...]) -> Series:
    """The judged figures of the last of these nights: those whose least width is known."""
    number = {one.night: place for place, one in enumerate(nights)}
    frame = frame[frame["night"].isin(list(number)) & frame["metric"].isin(list(HALF_WIDTHS))]
    place = frame["night"].map(number).to_numpy(np.int64)
    codes = _codes(frame)
    repeat = frame["repeat"].to_numpy(np.int64)
    tonight = (place == len(nights) - 1) & (repeat == 0) & ~np.isnan(frame["value"].to_numpy())
    known, column = np.unique(codes[tonight], return_index=True)
    order = np.argsort(column)
    rows = frame[tonight].iloc[np.sort(column)]
    where = np.searchsorted(known, codes).clip(max=max(len(known) - 1, 0))
    kept = known[where] == codes if len(known) else np.zeros(len(codes), bool)
    back = np.empty(len(known), np.int64)
    back[order] = np.arange(len(known))
    shape = (len(nights), len(known))
    first = kept & (repeat == 0)
    grids = {name: _grid(frame[name].to_numpy(), place, where, back, first, shape) for name in ("value", "low", "high")}
    drawn = [
        _grid(frame["value"].to_numpy(), place, where, back, kept & (repeat == one), shape)
        for one in range(1, repeat.max(initial=0) + 1)
    ]
    return _assembled(nights, rows, grids, np.array(drawn).reshape(len(drawn), *shape))


def _codes(frame: pd.DataFrame) -> np.ndarray:
    """One integer a series."""
    found = np.zeros(len(frame), np.int64)
    for name in (*NAMES, "unit"):
        text = frame[name].astype("category").cat
        found = found * max(len(text.categories), 1) + text.codes.to_numpy(np.int64)
    return found


def _grid(values, place, where, back, kept, shape) -> np.ndarray:
    grid = np.full(shape, np.nan)
    grid[place[kept], back[where[kept]]] = values[kept]
    return np.where(np.isinf(grid), np.sign(grid) * 1e30, grid)


def _assembled(
    nights: tuple[Stamp, ...], rows: pd.DataFrame, grids: dict[str, np.ndarray], again: np.ndarray
) -> Series:
    keys = [tuple(map(str, key)) for key in zip(*(rows[name] for name in NAMES), strict=True)]
    widths = [
        HALF_WIDTHS[metric].get((mode, unit), Width())
        for (_, _, mode, metric), unit in zip(keys, rows["unit"], strict=True)
    ]
    absolute = np.array([one.absolute for one in widths], np.float64)
    return Series(
        stamps=nights,
        keys=keys,
        values=grids["value"],
        sign=np.where(rows["better"] == "higher", -1.0, 1.0),
        absolute=np.fmax(absolute, _interval(grids)),
        share=np.array([one.share for one in widths], np.float64),
        quiet=quiet(keys, grids["value"]),
        bound=rows["bound"].to_numpy(np.float64),
        unit=[str(one) for one in rows["unit"]],
        again=again,
    )


def quiet(keys: list[tuple[str, str, str, str]], values: np.ndarray) -> np.ndarray:
    """`bands.QUIET` for figures of cells that do not repeat: a fifth of their figures differ on a fifth of the nights.

    There, a figure that was the same so far need not be one that is always the same.
    """
    with np.errstate(invalid="ignore"):
        differs = (np.diff(values, axis=0) != 0) & ~np.isnan(values[1:]) & ~np.isnan(values[:-1])
    restless = differs.sum(axis=0) > len(values) / 5
    codes = np.unique([cell for cell, *_ in keys], return_inverse=True)[1] if keys else np.zeros(0, np.int64)
    share = np.bincount(codes, restless) / np.maximum(np.bincount(codes), 1)
    return np.where(share[codes] > 1 / 5, QUIET, 0.0)


def _interval(grids: dict[str, np.ndarray]) -> np.ndarray:
    """Half of a figure's own interval: tonight's or the usual one, whichever is wider; NaN where it has none."""
    half = (grids["high"] - grids["low"]) / 2
    has = ~np.isnan(half).all(axis=0)
    usual = np.full(half.shape[1], np.nan)
    usual[has] = np.nanmedian(half[:, has], axis=0)
    return np.fmax(usual, half[-1]) if len(half) else usual


@dataclass(frozen=True)
class Figure:
    """One figure over all nights of a table; `values` has None for a night without it."""

    cell: str
    stage: str
    mode: str
    metric: str
    unit: str
    verdict: str
    bound: float | None
    values: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        """The values there are."""
        return [one for one in self.values if one is not None]


def figures(frame: pd.DataFrame) -> list[Figure]:
    """Each figure once, by cell, in dataflow order."""
    names = list(frame.drop_duplicates("night")["night"].astype(str))
    number = {name: place for place, name in enumerate(names)}
    found: dict[tuple, list] = {}
    last: dict[tuple, Any] = {}
    columns = ("night", "cell", "stage", "mode", "metric", "value", "unit", "verdict", "bound")
    for night, *key, value, unit, verdict, bound in zip(*(frame[name] for name in columns), strict=True):
        row = found.setdefault(tuple(key), [None] * len(names))
        row[number[night]] = None if math.isnan(value) else float(value)
        last[tuple(key)] = (unit, verdict, None if math.isnan(bound) else float(bound))
    order = sorted(found, key=lambda key: key[0])
    return [
        Figure(*map(str, key), str(last[key][0]), str(last[key][1]), last[key][2], tuple(found[key])) for key in order
    ]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as plain values; a missing number is None."""
    frame = frame.astype(object)
    return frame.where(frame.notna(), None).to_dict("records")
