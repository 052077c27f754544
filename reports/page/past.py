"""What history adds to a night: its changes, and its cells' trends. The only reader of `parity.history`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import TYPE_CHECKING

from parity.home import home
from parity.nightly.commits import between
from parity.nightly.records import Commit
from parity.reports.page.plots import DrawingSize
from parity.reports.page.trends import FIGURES, WORSE, BandOf, CellTrends, TrendLine
from parity.stages import TABLE

if TYPE_CHECKING:
    import pandas as pd

    from parity.history import Change

NIGHTS = 60
"""Nights that a trend shows."""
BIG = DrawingSize(width=640.0, height=150.0, left=52.0, bottom=20.0)
"""The drawing of a change, with room for its axes."""


@dataclass(frozen=True)
class ChangeView:
    """One change, the stage it shows at (empty where no stage has it), its figure's line, and what was committed."""

    change: Change
    first_stage: str
    series: TrendLine | None
    commits: tuple[Commit, ...] = ()

    @property
    def says(self) -> str:
        """Its sentence without the cell's name."""
        return self.change.sentence.removeprefix(f"{self.change.cell}: ")

    @property
    def since(self) -> str:
        """`regression since 2026-11-20`."""
        return f"{self.change.kind} since {self.change.since_date}"


@dataclass(frozen=True)
class Past:
    """What of the history at `url` a page shows; `known` is False where there is none to ask, and `why` says so."""

    known: bool = False
    nights: int = 0
    changes: tuple[ChangeView, ...] = ()
    waiting: Mapping[str, int] = field(default_factory=dict)
    series: Mapping[str, tuple[TrendLine, ...]] = field(default_factory=dict)
    url: str = ""
    why: str = "no history was given (--history URL)"

    @property
    def where(self) -> str:
        """The URL as the argument of a command; '' for the default."""
        return "" if self.url in ("", str(home() / "history")) else f"{quote(self.url)} "

    @property
    def counted(self) -> str:
        """How many changes there are, as `parity history --changes` ends."""
        from parity.history.changes import counted, counted_words

        return counted_words(counted((changed.change.kind for changed in self.changes), len(self.waiting)))

    @property
    def worse(self) -> tuple[ChangeView, ...]:
        """What is to look at."""
        return tuple(changed for changed in self.changes if changed.change.kind in WORSE)

    @property
    def events(self) -> tuple[tuple[ChangeView, ...], ...]:
        """What is to look at: cells that changed alike on one night are one event."""
        events: dict[tuple[str, str, str], list[ChangeView]] = {}
        for changed in self.worse:
            change = changed.change
            events.setdefault((change.kind, change.since_night, change.stage), []).append(changed)
        return tuple(map(tuple, events.values()))

    @property
    def quiet(self) -> tuple[ChangeView, ...]:
        """Improvements, what is new, what moved within its band."""
        return tuple(changed for changed in self.changes if changed.change.kind not in WORSE)

    def of(self, cell: str) -> tuple[ChangeView, ...]:
        """The changes of a cell, gravest first."""
        return tuple(changed for changed in self.changes if changed.change.cell == cell)


def read_past(url: str, night: str, cells: Iterable[str]) -> Past:
    """Ask history about a night.

    Raises:
        UsageError: the history cannot be read.
    """
    from parity.history import WINDOW, Bands, acknowledged, acknowledgements, load, verdicts, waiting

    frame = load(url, last=WINDOW, repeats=True)
    if night not in set(frame["night"].astype(str)):
        frame = load(url, repeats=True)
    if night not in set(frame["night"].astype(str)):
        return Past(why=f"this night is not in the history {url}")
    own = frame[frame["repeat"] == 0]
    changes = acknowledged(verdicts(frame, night), acknowledgements(url))
    past = past_from(own, changes, waiting(frame, night), night, cells, Bands(frame, night))
    return replace(past, url=url)


def past_from(
    frame: pd.DataFrame,
    changes: Sequence[Change],
    waiting: Mapping[str, int],
    night: str,
    cells: Iterable[str],
    bands: BandOf | None = None,
) -> Past:
    """The same of a table and changes already loaded; `bands` has the bands of figures without a change."""
    firsts = frame.drop_duplicates("night").sort_values(["started", "night"], kind="stable")
    order = firsts["night"].astype(str).tolist()
    order = order[: order.index(night) + 1]
    drawn = {"l2", *(metric for _, metric in FIGURES), *(change.metric for change in changes)}
    frame = frame[frame["metric"].isin(drawn) & frame["night"].isin(order[-NIGHTS:])]
    frame = frame.assign(
        **{name: frame[name].astype(str) for name in ("cell", "night", "stage", "mode", "metric", "unit")}
    )
    trends = {
        str(cell): CellTrends(rows, order[-NIGHTS:], changes, bands or {})
        for cell, rows in frame.groupby("cell", sort=False)
    }
    return Past(
        known=True,
        nights=len(order),
        changes=tuple(_change_view(change, trends.get(change.cell)) for change in changes),
        waiting=waiting,
        series={cell: trends[cell].movers() for cell in cells if cell in trends},
    )


def _change_view(change: Change, trends: CellTrends | None) -> ChangeView:
    template = ".".join("{l}" if part.isdigit() else part for part in change.stage.split("."))
    known = any(stage.template == template for stage in TABLE)
    line = trends.line("", change.stage, change.mode, change.metric, BIG) if trends else None
    before, behind = (name.removesuffix("-dirty") for name in change.commits)
    return ChangeView(change, change.stage if known else "", line, between(before, behind))
