"""What history adds to a night: its changes, and how every figure came here. The only reader of `parity.history`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.stages import TABLE
from reports.page.figures import figure
from reports.page.pipeline import GROUPS, node_of
from reports.page.plots import Trend, trend

NIGHTS = 60
"""Nights that a trend shows."""
BIG = dict(width=640.0, height=150.0, left=52.0, bottom=20.0)
"""The drawing of a change, with room for its axes."""
WORSE = ("regression", "drift", "broken", "gone")
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
    """One figure over the nights, oldest first."""

    label: str
    nights: tuple[str, ...]
    values: tuple[float, ...]
    says: str
    change: str
    drawn: Trend

    @property
    def dates(self) -> tuple[str, str]:
        """The first and the last night's day, as far as their names tell it."""
        return _day(self.nights[0]), _day(self.nights[-1])


@dataclass(frozen=True)
class Changed:
    """One change: what history says of it, the stage it shows at (empty where no stage has it), and its figure's line."""

    told: Any
    first_stage: str
    series: Series | None

    @property
    def since(self) -> str:
        """`regression since 2026-11-20`."""
        return f"{self.told.kind} since {self.told.since_date}"


@dataclass(frozen=True)
class Past:
    """Everything of history that a page shows; `known` is False where there is no history to ask, and `why` says so."""

    known: bool = False
    nights: int = 0
    changes: tuple[Changed, ...] = ()
    waiting: Mapping[str, int] = field(default_factory=dict)
    series: Mapping[str, tuple[Series, ...]] = field(default_factory=dict)
    why: str = "no history was given (--history URL)"

    @property
    def worse(self) -> tuple[Changed, ...]:
        """What is to look at."""
        return tuple(one for one in self.changes if one.told.kind in WORSE)

    @property
    def quiet(self) -> tuple[Changed, ...]:
        """Improvements, what is new, what moved within its band."""
        return tuple(one for one in self.changes if one.told.kind not in WORSE)

    def of(self, cell: str) -> tuple[Changed, ...]:
        """The changes of a cell, gravest first."""
        return tuple(one for one in self.changes if one.told.cell == cell)


def read_past(url: str, night: str, cells: Iterable[str]) -> Past:
    """Ask history about a night.

    Raises:
        UsageError: the history cannot be read.
    """
    from parity.history import WINDOW, load, verdicts, waiting

    frame = load(url, last=WINDOW)
    if night not in set(frame["night"].astype(str)):
        frame = load(url)
    if night not in set(frame["night"].astype(str)):
        return Past(why=f"this night is not in the history {url}")
    return tell_past(frame, verdicts(frame, night), waiting(frame, night), night, cells)


def tell_past(frame, changes: Sequence[Any], waiting: Mapping[str, int], night: str, cells: Iterable[str]) -> Past:
    """The same of a table already loaded and changes already found."""
    order = frame.drop_duplicates("night").sort_values(["started", "night"], kind="stable")["night"].astype(str).tolist()
    order = order[: order.index(night) + 1]
    columns = {name: frame[name].astype(str) for name in ("cell", "night", "stage", "mode", "metric", "unit")}
    frame = frame.assign(**columns)
    frame = frame[frame["night"].isin(order[-NIGHTS:])]
    held = {cell: Figures(rows, order[-NIGHTS:], changes) for cell, rows in frame.groupby("cell", sort=False)}
    return Past(
        known=True,
        nights=len(order),
        changes=tuple(_changed(one, held.get(one.cell)) for one in changes),
        waiting=waiting,
        series={cell: tuple(held[cell].trends()) for cell in cells if cell in held},
    )


def _changed(one: Any, figures: Figures | None) -> Changed:
    parts = ".".join("{l}" if part.isdigit() else part for part in one.stage.split("."))
    known = any(stage.template == parts for stage in TABLE)
    return Changed(one, one.stage if known else "", figures and figures.one("", one.stage, one.mode, one.metric, **BIG))


class Figures:
    """One cell's rows of history.

    Args:
        rows: of this cell and no other, with text columns as strings.
        order: names of the nights, oldest first; the last is tonight.
        changes: of the night, any cell's.
    """

    def __init__(self, rows, order: Sequence[str], changes: Sequence[Any]):
        self.order = order
        self.rows = rows.set_index(["stage", "mode", "metric"])[["night", "value", "unit"]].sort_index()
        cell = rows["cell"].iloc[0]
        self.changes = {(one.stage, one.mode, one.metric): one for one in reversed(changes) if one.cell == cell}

    def one(self, label: str, stage: str, mode: str, metric: str, **size: float) -> Series | None:
        """One figure; None where no night has it."""
        if (stage, mode, metric) not in self.rows.index:
            return None
        rows = self.rows.loc[[(stage, mode, metric)]]
        held = dict(zip(rows["night"], rows["value"], strict=True))
        values = {night: float(held[night]) for night in self.order if night in held}
        change = self.changes.get((stage, mode, metric))
        first = change and next((number for number, night in enumerate(values) if night >= change.since_night), None)
        return Series(
            label=label or f"{metric} of {stage}" + (f", {mode}" if mode else ""),
            nights=tuple(values),
            values=tuple(values.values()),
            says=_says(tuple(values.values())),
            change=f"{change.kind} since {change.since_date}" if change else "",
            drawn=trend(tuple(values.values()), change.band if change else None, first, **size),
        )

    def trends(self) -> Iterator[Series]:
        """The figures that have a trend of their own, then of every node and mode the stage that is largest tonight."""
        found = [self.one(label, stage, "" if stage == "speed" else "chained", metric) for (stage, metric), label in FIGURES.items()]
        yield from filter(None, found)
        rows = self.rows.reset_index()
        tonight = rows[(rows["night"] == self.order[-1]) & (rows["metric"] == "l2")]
        largest: dict[tuple[tuple[int, int], str], tuple[float, str, str]] = {}
        for stage, mode, value, unit in zip(tonight["stage"], tonight["mode"], tonight["value"], tonight["unit"], strict=True):
            key = (PLACES[node_of(stage)], mode)
            largest[key] = max(largest.get(key, (-1.0, "", "")), (float(value), stage, unit))
        for (_, mode), (_, stage, unit) in sorted(largest.items()):
            yield from filter(None, [self.one(f"{stage}, {mode}, {unit}", stage, mode, "l2")])


PLACES = {(group, node): (number, place) for number, (group, nodes) in enumerate(GROUPS.items()) for place, node in enumerate(nodes)}
"""Nodes of the pipeline by their place in dataflow order."""


def _day(night: str) -> str:
    """`20261121T020000.123` as 2026-11-21; another name as it is."""
    return f"{night[:4]}-{night[4:6]}-{night[6:8]}" if night[:8].isdigit() and night[8:9] == "T" else night


def _says(values: Sequence[float]) -> str:
    """A line over the nights, in a sentence."""
    if len(values) == 1:
        return f"one night: {figure(values[0])}"
    return f"{len(values)} nights from {figure(min(values))} to {figure(max(values))}, last {figure(values[-1])}"
