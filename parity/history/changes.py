"""What changed: one `Change` for each thing that happened to a cell, however many of its figures show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from parity.history.series import Stamp

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["regression", "drift", "broken", "gone", "improvement", "new", "moved"]
GRAVITY: tuple[Kind, ...] = ("regression", "drift", "broken", "gone", "improvement", "new", "moved")
"""Gravest first. `moved`: within what a harmless change of rounding moves; worth a quiet line and no more."""

RECENT = 14
"""Nights for which good, quiet and lost things are told; what is worse is told as long as it lasts."""

SURROUNDINGS = {"device_spec": "device", "machine": "machine"}
"""Columns that a reader looks at first where the commit is innocent."""

TOGETHER = 2
"""Nights by which the dates of one event may differ between figures: noise hides the first night of some."""


@dataclass(frozen=True)
class Change:
    """One change of a cell, told by the figure that shows it first in dataflow order.

    Attributes:
        since_night, since_date: the first night with it; `nights` of them have figures.
        commits: of the last night before it, and of that first night; '' where there is none.
        before, after: the figure's level before, and since (a drift: the line's value tonight).
        band: the noise band around `before`.
        others: further figures of the cell that changed with it.
    """

    cell: str
    stage: str
    mode: str
    metric: str
    kind: Kind
    since_night: str
    since_date: str
    commits: tuple[str, str]
    before: float
    after: float
    band: tuple[float, float]
    nights: int
    sentence: str
    others: int = 0


@dataclass(frozen=True)
class Finding:
    """What one figure shows: `since` is the number of the first night with it, `place` its rank in dataflow order."""

    place: int
    since: int
    size: float
    change: Change


def told(since: int, before: int | None, stamps: Sequence[Stamp]) -> dict[str, object]:
    """When, as fields of a Change: `since` and `before` are numbers of nights."""
    last = stamps[before].commit if before is not None else ""
    return {
        "since_night": stamps[since].night,
        "since_date": stamps[since].date,
        "commits": (last, stamps[since].commit),
    }


def between(commits: tuple[str, str]) -> str:
    """The commit range in words."""
    before, behind = commits
    if before == behind:
        return f"both nights have commit {behind}"
    return f"between commits {before} and {behind}" if before else f"commit {behind}"


def lasting(nights: int) -> str:
    """How many nights it has lasted, in words."""
    return "1 night" if nights == 1 else f"{nights} nights"


def gathered(findings: Iterable[Finding]) -> list[Change]:
    """One change for each cell, kind and date; gravest first.

    Findings of a cell and kind whose dates follow each other within `TOGETHER` nights are one event. It has the date that
    most of them have, and is told by the first stage in dataflow order, by that stage's largest figure.
    """
    groups: dict[tuple[str, Kind], list[Finding]] = {}
    for one in findings:
        groups.setdefault((one.change.cell, one.change.kind), []).append(one)
    found = [_event(event) for members in groups.values() for event in _events(members)]
    return sorted(found, key=lambda one: (GRAVITY.index(one.kind), -one.others, one.cell, one.since_night))


def _events(members: list[Finding]) -> Iterable[list[Finding]]:
    members, event = sorted(members, key=lambda one: one.since), []
    for one in members:
        if event and one.since - event[-1].since > TOGETHER:
            yield event
            event = []
        event.append(one)
    yield event


def _event(event: list[Finding]) -> Change:
    dates = Counter(one.since for one in event)
    date = min(dates, key=lambda one: (-dates[one], one))
    first = min((one for one in event if one.since == date), key=lambda one: one.place)
    same = [one for one in event if one.since == date and _where(one) == _where(first)]
    change, others = max(same, key=lambda one: one.size).change, len(event) - 1
    if not others:
        return change
    figures = "figure" if others == 1 else "figures"
    return replace(change, others=others, sentence=f"{change.sentence}; {others} more {figures} of this cell with it")


def surroundings(change: Change, frame: pd.DataFrame) -> Change:
    """The change, with what else is different since its first night: the device that the label stands for, the machine."""
    nights = frame[(frame["cell"] == change.cell)].drop_duplicates("night")
    place = [str(one) for one in nights["night"]]
    if change.since_night not in place[1:]:
        return change
    now = nights.iloc[place.index(change.since_night)]
    then = nights.iloc[place.index(change.since_night) - 1]
    others = [
        f"{what} was {then[name]}, is {now[name]}" for name, what in SURROUNDINGS.items() if then[name] != now[name]
    ]
    return replace(change, sentence="; ".join([change.sentence, *others]))


def _where(one: Finding) -> tuple[str, str]:
    return one.change.stage, one.change.mode
