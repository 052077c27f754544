"""The verdicts on a night: what its cells and figures show against their own past, one change for each event."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from parity.history.cell_past import cell_changes
from parity.history.changes import CELL, GRAVITY, Change, ChangeKind, Observed
from parity.history.figures import figure_changes
from parity.history.series import SHORT, series, stamps
from parity.history.statistics import NEEDED

if TYPE_CHECKING:
    import pandas as pd

SURROUNDINGS = {"device_spec": "device", "machine": "machine", "golden": "golden"}
"""Columns that a reader looks at first where the commit is innocent."""

DIGEST = re.compile(r"[0-9a-f]{64}")

TOGETHER = 2
"""Nights by which the dates of one event may differ between figures: noise hides the first night of some."""


def verdicts(frame: pd.DataFrame, night: str) -> list[Change]:
    """What changed up to this night, against the run's own past; later nights of the table are not looked at.

    A step needs `NEEDED` earlier nights of its cell, a drift `NEEDED` nights, a verdict that changed one.

    Raises:
        UsageError: the night is not in the table.
    """
    past = stamps(frame, night)
    changes = gathered([*cell_changes(frame, past), *figure_changes(series(frame, past))])
    return [with_surroundings(change, frame) for change in changes]


def waiting(frame: pd.DataFrame, night: str) -> dict[str, int]:
    """Cells of this night whose figures have no band yet, and how many further nights they need for one."""
    names = [stamp.night for stamp in stamps(frame, night)]
    figures = frame[frame["night"].isin(names) & (frame["stage"] != CELL)].drop_duplicates(["night", "cell"])
    counts = figures["cell"].astype(str).value_counts()
    tonight = frame[frame["night"] == night]["cell"].astype(str).unique()
    need = {cell: NEEDED + 1 - int(counts.get(cell, 0)) for cell in sorted(tonight)}
    return {cell: missing for cell, missing in need.items() if missing > 0}


def gathered(observed: Iterable[Observed]) -> list[Change]:
    """One change for each cell, kind and date; gravest first.

    What figures of a cell show of one kind, with dates that follow each other within `TOGETHER` nights, is one event.
    It has the date that most of its figures have, and is told by the first stage in dataflow order, by that stage's
    largest figure.
    """
    groups: dict[tuple[str, ChangeKind], list[Observed]] = {}
    for figure in observed:
        groups.setdefault((figure.change.cell, figure.change.kind), []).append(figure)
    changes = [_told(event) for members in groups.values() for event in _events(members)]
    return sorted(
        changes, key=lambda change: (GRAVITY.index(change.kind), -change.others, change.cell, change.since_night)
    )


def _events(members: list[Observed]) -> Iterator[list[Observed]]:
    event: list[Observed] = []
    for figure in sorted(members, key=lambda figure: figure.since):
        if event and figure.since - event[-1].since > TOGETHER:
            yield event
            event = []
        event.append(figure)
    yield event


def _told(event: list[Observed]) -> Change:
    dates = Counter(figure.since for figure in event)
    since = min(dates, key=lambda date: (-dates[date], date))
    dated = [figure for figure in event if figure.since == since]
    first = min(dated, key=lambda figure: figure.place)
    same_stage = [figure for figure in dated if _stage(figure) == _stage(first)]
    change, others = max(same_stage, key=lambda figure: figure.size).change, len(event) - 1
    if not others:
        return change
    figures = "figure" if others == 1 else "figures"
    return replace(change, others=others, sentence=f"{change.sentence}; {others} more {figures} of this cell with it")


def _stage(figure: Observed) -> tuple[str, str]:
    return figure.change.stage, figure.change.mode


def _short(value: str) -> str:
    return value[:SHORT] if DIGEST.fullmatch(value) else value


def with_surroundings(change: Change, frame: pd.DataFrame) -> Change:
    """The change, with what else differs since its first night: the device of the label, the machine, the golden."""
    nights = frame[(frame["cell"] == change.cell)].drop_duplicates("night")
    names = [str(name) for name in nights["night"]]
    if change.since_night not in names[1:]:
        return change
    now = nights.iloc[names.index(change.since_night)]
    then = nights.iloc[names.index(change.since_night) - 1]
    both = {what: (str(then[column]), str(now[column])) for column, what in SURROUNDINGS.items()}
    if change.kind == "golden" or "" in both["golden"]:
        del both["golden"]
    others = [f"{what} was {_short(a)}, is {_short(b)}" for what, (a, b) in both.items() if a != b]
    return replace(change, sentence="; ".join([change.sentence, *others]))
