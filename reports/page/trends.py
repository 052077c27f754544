"""How every figure of a cell came to where it is: a line over the nights, those that moved first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median
from typing import TYPE_CHECKING, Protocol

from parity.reports.page.figures import figure
from parity.reports.page.pipeline import GROUPS, node_of
from parity.reports.page.plots import SMALL, DrawingSize, TrendDrawing, trend

if TYPE_CHECKING:
    import pandas as pd

    from parity.history import Change

COLUMNS = ("stage", "mode", "metric", "night", "value", "unit")
TWO = 2
"""Nights from which a line is a trend."""
STILL = 0.01
"""Share of a figure that it is taken to spread by at the least: two nights, or equal ones, show no spread."""
WORSE = ("regression", "drift", "broken", "gone")
"""Kinds of change that are to look at."""
FIGURES: dict[tuple[str, str], str] = {
    ("acceptance", "acceptance_length"): "Acceptance length, tokens per round",
    ("acceptance", "relative"): "Acceptance against the reference",
    ("decisions.target", "kl_mean"): "KL, target, nats",
    ("decisions.verify", "kl_mean"): "KL, verify, nats",
    ("decisions.drafter", "kl_mean"): "KL, drafter, nats",
    ("decisions.target", "regret_mean"): "Regret, target, logits",
    ("decisions.verify", "regret_mean"): "Regret, verify, logits",
    ("decisions.drafter", "regret_mean"): "Regret, drafter, logits",
    ("speed", "over_plain"): "Speed over plain decoding",
    ("speed", "model_over_plain"): "Speed over plain, by the model",
    ("speed", "over_baseline"): "Speed over the baseline",
    ("bench", "over_plain"): "Bench, speed over plain decoding",
}
"""Stage and metric of the figures with a trend of their own; stages' errors are shown by node of the pipeline."""


class BandOf(Protocol):
    """Bands of figures without a change, by (cell, stage, mode, metric): `parity.history.Bands`, or a mapping."""

    def get(self, key: tuple[str, str, str, str], /) -> tuple[float, float] | None:
        """The band; None where it has none."""


@dataclass(frozen=True)
class TrendLine:
    """One figure over the nights that have it, oldest first; `tonight` is None where the last one has not."""

    label: str
    nights: tuple[str, ...]
    values: tuple[float, ...]
    tonight: float | None
    says: str
    change: str
    drawn: TrendDrawing

    @property
    def moved(self) -> float:
        """How far tonight is from the middle of the nights before, in their spread; -1 where tonight has no figure."""
        before = [value for value in self.values[:-1] if isfinite(value)]
        if self.tonight is None or not before:
            return -1.0
        middle = median(before)
        spread = max(max(before) - min(before), STILL * abs(middle), 1e-30)
        return abs(self.tonight - middle) / spread if isfinite(self.tonight) else inf

    @property
    def moves(self) -> bool:
        """Whether it changed, or is tonight where no night before was."""
        return bool(self.change) or self.moved > 1

    @property
    def dates(self) -> tuple[str, str]:
        """The first and the last night's day, as far as their names tell it."""
        return _day(self.nights[0]), _day(self.nights[-1])


class CellTrends:
    """One cell's rows of history.

    Args:
        rows: of this cell and no other, with text columns as strings.
        order: names of the nights, oldest first; the last is tonight.
        changes: of the night, any cell's.
        bands: of figures without a change.
    """

    def __init__(self, rows: pd.DataFrame, order: Sequence[str], changes: Sequence[Change], bands: BandOf):
        self.order, self.bands, self.cell = order, bands, str(rows["cell"].iloc[0])
        self.values: dict[tuple[str, str, str], dict[str, float]] = {}
        self.units: dict[tuple[str, str, str], str] = {}
        for stage, mode, metric, night, value, unit in zip(*(rows[name] for name in COLUMNS), strict=True):
            self.values.setdefault((stage, mode, metric), {})[night] = float(value)
            self.units[stage, mode, metric] = unit
        own = [change for change in changes if change.cell == self.cell]
        self.changes = {(change.stage, change.mode, change.metric): change for change in reversed(own)}
        self.worse = next((change for change in own if change.kind in WORSE), None)

    def line(self, label: str, stage: str, mode: str, metric: str, size: DrawingSize = SMALL) -> TrendLine | None:
        """One figure; None where fewer than two nights have it.

        One that is outside its band has left it with the cell's change.
        """
        if len(by_night := self.values.get((stage, mode, metric), {})) < TWO:
            return None
        values = {night: by_night[night] for night in self.order if night in by_night}
        change = self.changes.get((stage, mode, metric))
        band = (
            (change.band if change.band[0] < change.band[1] else None)
            if change
            else self.bands.get((self.cell, stage, mode, metric))
        )
        tonight = values.get(self.order[-1])
        outside = band is not None and tonight is not None and not band[0] <= tonight <= band[1]
        since = change or (self.worse if outside else None)
        nights = (number for number, night in enumerate(values) if since and night >= since.since_night)
        first = next(nights, None)
        return TrendLine(
            label=label or f"{metric} of {stage}" + (f", {mode}" if mode else ""),
            nights=tuple(values),
            values=tuple(values.values()),
            tonight=tonight,
            says=_says(tuple(values.values())),
            change=f"{change.kind} since {change.since_date}" if change else "outside its band" if outside else "",
            drawn=trend(tuple(values.values()), band, first, size),
        )

    def movers(self) -> tuple[TrendLine, ...]:
        """`lines`, those first that changed, then those that moved furthest tonight."""
        return tuple(sorted(self.lines(), key=lambda line: (not line.change, -line.moved)))

    def lines(self) -> Iterator[TrendLine]:
        """The figures that have a trend of their own, then of every node and mode the stage that is largest tonight."""
        for (stage, metric), label in FIGURES.items():
            if line := self.line(label, stage, "" if stage in ("speed", "bench") else "chained", metric):
                yield line
        tonight = self.order[-1]
        largest: dict[tuple[tuple[int, int], str], tuple[float, str, str]] = {}
        for (stage, mode, metric), by_night in self.values.items():
            if metric == "l2" and tonight in by_night:
                place, error = (
                    (PLACES[node_of(stage)], mode),
                    (by_night[tonight], stage, self.units[stage, mode, metric]),
                )
                largest[place] = max(largest.get(place, error), error)
        for (_, mode), (_, stage, unit) in sorted(largest.items()):
            if line := self.line(f"{stage}, {mode}, {unit}", stage, mode, "l2"):
                yield line


PLACES = {
    (group, node): (number, place)
    for number, (group, nodes) in enumerate(GROUPS.items())
    for place, node in enumerate(nodes)
}
"""Nodes of the pipeline by their place in dataflow order."""


def _day(night: str) -> str:
    """`20261121T020000.123` as 2026-11-21; another name as it is."""
    return f"{night[:4]}-{night[4:6]}-{night[6:8]}" if night[:8].isdigit() and night[8:9] == "T" else night


def _says(values: Sequence[float]) -> str:
    """A line over the nights, in a sentence."""
    return f"{len(values)} nights from {figure(min(values))} to {figure(max(values))}, last {figure(values[-1])}"
