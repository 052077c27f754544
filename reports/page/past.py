"""What history adds to a night: its changes, and how every figure came here. The only reader of `parity.history`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.reports.page.trends import FIGURES, WORSE, Figures, Series
from parity.stages import TABLE

NIGHTS = 60
"""Nights that a trend shows."""
BIG = dict(width=640.0, height=150.0, left=52.0, bottom=20.0)
"""The drawing of a change, with room for its axes."""


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
    from parity.history import WINDOW, Bands, load, verdicts, waiting

    frame = load(url, last=WINDOW, repeats=True)
    if night not in set(frame["night"].astype(str)):
        frame = load(url, repeats=True)
    if night not in set(frame["night"].astype(str)):
        return Past(why=f"this night is not in the history {url}")
    return tell_past(
        frame[frame["repeat"] == 0], verdicts(frame, night), waiting(frame, night), night, cells, Bands(frame, night)
    )


def tell_past(
    frame, changes: Sequence[Any], waiting: Mapping[str, int], night: str, cells: Iterable[str], bands: Any = None
) -> Past:
    """The same of a table already loaded and changes already found; `bands` gives the bands of figures without a change."""
    order = (
        frame.drop_duplicates("night").sort_values(["started", "night"], kind="stable")["night"].astype(str).tolist()
    )
    order = order[: order.index(night) + 1]
    drawn = {"l2", *(metric for _, metric in FIGURES), *(one.metric for one in changes)}
    frame = frame[frame["metric"].isin(drawn) & frame["night"].isin(order[-NIGHTS:])]
    frame = frame.assign(
        **{name: frame[name].astype(str) for name in ("cell", "night", "stage", "mode", "metric", "unit")}
    )
    held = {
        cell: Figures(rows, order[-NIGHTS:], changes, bands or {}) for cell, rows in frame.groupby("cell", sort=False)
    }
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
