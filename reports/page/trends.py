"""How the figures of one cell came to where they are: a line over the nights with its band and its change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parity.reports.page.figures import figure
from parity.reports.page.pipeline import GROUPS, node_of
from parity.reports.page.plots import Trend, trend

COLUMNS = ("stage", "mode", "metric", "night", "value", "unit")
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
}
"""Stage and metric of the figures with a trend of their own; stages' errors are shown by node of the pipeline."""


@dataclass(frozen=True)
class Series:
    """One figure over the nights that have it, oldest first; `tonight` is None where the last one has not."""

    label: str
    nights: tuple[str, ...]
    values: tuple[float, ...]
    tonight: float | None
    says: str
    change: str
    drawn: Trend

    @property
    def dates(self) -> tuple[str, str]:
        """The first and the last night's day, as far as their names tell it."""
        return _day(self.nights[0]), _day(self.nights[-1])


class Figures:
    """One cell's rows of history.

    Args:
        rows: of this cell and no other, with text columns as strings.
        order: names of the nights, oldest first; the last is tonight.
        changes: of the night, any cell's.
        bands: by cell, stage, mode and metric.
    """

    def __init__(self, rows, order: Sequence[str], changes: Sequence[Any], bands: Any):
        self.order, self.bands, self.cell = order, bands, rows["cell"].iloc[0]
        self.held: dict[tuple[str, str, str], dict[str, float]] = {}
        self.units: dict[tuple[str, str, str], str] = {}
        for *key, night, value, unit in zip(*(rows[name] for name in COLUMNS), strict=True):
            self.held.setdefault(tuple(key), {})[night] = float(value)
            self.units[tuple(key)] = unit
        mine = [one for one in changes if one.cell == self.cell]
        self.changes = {(one.stage, one.mode, one.metric): one for one in reversed(mine)}
        self.worse = next((one for one in mine if one.kind in WORSE), None)

    def one(self, label: str, stage: str, mode: str, metric: str, **size: float) -> Series | None:
        """One figure; None where no night has it. One that is outside its band has left it with the cell's change."""
        if not (held := self.held.get((stage, mode, metric))):
            return None
        values = {night: held[night] for night in self.order if night in held}
        change = self.changes.get((stage, mode, metric))
        band = change.band if change else self.bands.get((self.cell, stage, mode, metric))
        tonight = values.get(self.order[-1])
        outside = bool(band) and tonight is not None and not band[0] <= tonight <= band[1]
        since = change or (self.worse if outside else None)
        first = since and next((number for number, night in enumerate(values) if night >= since.since_night), None)
        return Series(
            label=label or f"{metric} of {stage}" + (f", {mode}" if mode else ""),
            nights=tuple(values),
            values=tuple(values.values()),
            tonight=tonight,
            says=_says(tuple(values.values())),
            change=f"{change.kind} since {change.since_date}" if change else "outside its band" if outside else "",
            drawn=trend(tuple(values.values()), band, first, **size),
        )

    def trends(self) -> Iterator[Series]:
        """The figures that have a trend of their own, then of every node and mode the stage that is largest tonight."""
        found = [
            self.one(label, stage, "" if stage == "speed" else "chained", metric)
            for (stage, metric), label in FIGURES.items()
        ]
        yield from filter(None, found)
        largest: dict[tuple[tuple[int, int], str], tuple[float, str, str]] = {}
        for (stage, mode, metric), held in self.held.items():
            if metric == "l2" and self.order[-1] in held:
                place, mine = (
                    (PLACES[node_of(stage)], mode),
                    (held[self.order[-1]], stage, self.units[stage, mode, metric]),
                )
                largest[place] = max(largest.get(place, mine), mine)
        for (_, mode), (_, stage, unit) in sorted(largest.items()):
            yield from filter(None, [self.one(f"{stage}, {mode}, {unit}", stage, mode, "l2")])


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
    if len(values) == 1:
        return f"one night: {figure(values[0])}"
    return f"{len(values)} nights from {figure(min(values))} to {figure(max(values))}, last {figure(values[-1])}"
