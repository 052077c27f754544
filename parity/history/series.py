"""The table as series: each judged figure of tonight with its own past, night by night."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from parity.errors import UsageError
from parity.history.statistics import Array

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[str, str, str, str]
"""(cell, stage, mode, metric)"""
Least = Callable[[Array | float], Array]
"""Centres to the least half widths of the bands around them."""

WINDOW = 90
"""Nights looked back: a step is told while a night before it is in the window."""

SHORT = 10
"""Digits of a commit that a reader is shown."""

NAMES = ("cell", "stage", "mode", "metric")

QUIET = 1 / 3
"""A device whose figures differ from night to night has no figure quieter than this share of the least half width."""


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
    # Half of the figure's own interval where that is wider, as it is unless every text is the reference's, which is no
    # proof that a tie could not part them: a fifth of what the gate allows.
    "relative": {("chained", _PLAIN): Width(0.01)},
    "relative_forced": {("chained", _PLAIN): Width(0.01)},
    # Medians of five repeats on a busy machine: benchmarks/README.md has their spread, least to most, within 8 %.
    "over_baseline": {("", "ratio"): Width(0.0, 0.1)},
}
"""By metric, then (mode, unit)."""


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
    keys: list[Key]
    values: Array
    sign: Array
    absolute: Array
    share: Array
    quiet: Array
    bound: Array
    unit: list[str]
    again: Array

    @property
    def cells(self) -> dict[str, Array]:
        """The numbers of each cell's series."""
        cells = np.array([cell for cell, *_ in self.keys])
        return {str(name): np.flatnonzero(cells == name) for name in np.unique(cells)}

    def least(self, centre: Array | float, chosen: Array | int | slice = slice(None)) -> Array:
        """The least half width around these centres, of the series of these numbers."""
        return cast(Array, np.maximum(self.absolute[chosen], self.share[chosen] * np.abs(centre)))


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
    columns = zip(rows["night"], rows["date"], rows["commit"], rows["dirty"], strict=True)
    return tuple(
        Stamp(str(name), str(date), _commit(str(commit), bool(dirty))) for name, date, commit, dirty in columns
    )


def _commit(commit: str, dirty: bool) -> str:
    return f"{commit[:SHORT] or 'unknown'}{'-dirty' if dirty else ''}"


def series(frame: pd.DataFrame, nights: tuple[Stamp, ...]) -> Series:
    """The judged figures of the last of these nights: those whose least width is known."""
    number = {stamp.night: place for place, stamp in enumerate(nights)}
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
        _grid(frame["value"].to_numpy(), place, where, back, kept & (repeat == number), shape)
        for number in range(1, repeat.max(initial=0) + 1)
    ]
    return _assembled(nights, rows, grids, np.array(drawn).reshape(len(drawn), *shape))


def _codes(frame: pd.DataFrame) -> Array:
    """One integer a series."""
    codes = np.zeros(len(frame), np.int64)
    for name in (*NAMES, "unit"):
        text = frame[name].astype("category").cat
        codes = codes * max(len(text.categories), 1) + text.codes.to_numpy(np.int64)
    return codes


def _grid(values: Array, place: Array, where: Array, back: Array, kept: Array, shape: tuple[int, int]) -> Array:
    """[T, S] from the rows that are kept; infinities are large numbers, for differences of them to be none."""
    grid = np.full(shape, np.nan)
    grid[place[kept], back[where[kept]]] = values[kept]
    return np.where(np.isinf(grid), np.sign(grid) * 1e30, grid)


def _assembled(nights: tuple[Stamp, ...], rows: pd.DataFrame, grids: dict[str, Array], again: Array) -> Series:
    cells, stages, modes, metrics = (rows[name].astype(str) for name in NAMES)
    keys = list(zip(cells, stages, modes, metrics, strict=True))
    widths = [
        HALF_WIDTHS[metric].get((mode, unit), Width())
        for (_, _, mode, metric), unit in zip(keys, rows["unit"], strict=True)
    ]
    absolute = np.array([width.absolute for width in widths], np.float64)
    return Series(
        stamps=nights,
        keys=keys,
        values=grids["value"],
        sign=np.where(rows["better"] == "higher", -1.0, 1.0),
        absolute=np.fmax(absolute, _interval(grids)),
        share=np.array([width.share for width in widths], np.float64),
        quiet=quiet(keys, grids["value"]),
        bound=rows["bound"].to_numpy(np.float64),
        unit=[str(unit) for unit in rows["unit"]],
        again=again,
    )


def quiet(keys: list[Key], values: Array) -> Array:
    """`QUIET` for figures of cells that do not repeat: a fifth of their figures differ on a fifth of the nights.

    There, a figure that was the same so far need not be one that is always the same.
    """
    with np.errstate(invalid="ignore"):
        differs = (np.diff(values, axis=0) != 0) & ~np.isnan(values[1:]) & ~np.isnan(values[:-1])
    restless = differs.sum(axis=0) > len(values) / 5
    codes = np.unique([cell for cell, *_ in keys], return_inverse=True)[1] if keys else np.zeros(0, np.int64)
    share = np.bincount(codes, restless) / np.maximum(np.bincount(codes), 1)
    return np.where(share[codes] > 1 / 5, QUIET, 0.0)


def _interval(grids: dict[str, Array]) -> Array:
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
        return [value for value in self.values if value is not None]


def figures(frame: pd.DataFrame) -> list[Figure]:
    """Each figure once, by cell, in dataflow order."""
    names = list(frame.drop_duplicates("night")["night"].astype(str))
    number = {name: place for place, name in enumerate(names)}
    values: dict[Key, list[float | None]] = {}
    latest: dict[Key, tuple[str, str, float | None]] = {}
    columns = ("night", *NAMES, "value", "unit", "verdict", "bound")
    for night, cell, stage, mode, metric, value, unit, verdict, bound in zip(
        *(frame[name] for name in columns), strict=True
    ):
        key = str(cell), str(stage), str(mode), str(metric)
        values.setdefault(key, [None] * len(names))[number[night]] = None if math.isnan(value) else float(value)
        latest[key] = str(unit), str(verdict), None if math.isnan(bound) else float(bound)
    return [Figure(*key, *latest[key], tuple(values[key])) for key in sorted(values, key=lambda key: key[0])]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as plain values; a missing number is None."""
    frame = frame.astype(object)
    return cast("list[dict[str, Any]]", frame.where(frame.notna(), None).to_dict("records"))
