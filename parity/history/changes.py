"""What changed: a `Change` for each thing that happened to a cell, dated, and told in words.

Those of whole cells are found by `cell_past`, what their figures show by `figures`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from parity.history.series import Stamp

if TYPE_CHECKING:
    pass

ChangeKind = Literal["regression", "drift", "broken", "gone", "improvement", "new", "golden", "moved", "acknowledged"]
GRAVITY: tuple[ChangeKind, ...] = (
    "regression",
    "drift",
    "broken",
    "gone",
    "improvement",
    "new",
    "golden",
    "moved",
    "acknowledged",
)
"""Gravest first. `golden`: another truth than the night before had. `moved`: within what a harmless change of rounding
moves; worth a quiet line and no more."""

GRAVE: tuple[ChangeKind, ...] = ("regression", "drift")
LACKING: tuple[ChangeKind, ...] = ("broken", "gone")


def counted(kinds: Iterable[str], waiting: int) -> tuple[int, int, int]:
    """Changes for the worse; those without evidence, cells that wait for a noise band among them; all others."""
    kinds = list(kinds)
    grave, lacking = (sum(kind in group for kind in kinds) for group in (GRAVE, LACKING))
    return grave, lacking + waiting, len(kinds) - grave - lacking


def counted_words(counts: tuple[int, int, int]) -> str:
    """`1 changed for the worse, 0 without evidence, 2 other changes`."""
    return "{} changed for the worse, {} without evidence, {} other changes".format(*counts)


RECENT = 14
"""Nights for which good, quiet and lost things are told; what is worse is told as long as it lasts."""

CELL = "cell"


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
    kind: ChangeKind
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
class Observed:
    """A change as one figure or cell shows it.

    Attributes:
        place: rank of the figure in dataflow order; -1 for a whole cell.
        since: number of the first night with it.
        size: how far it went; the largest of a stage's figures tells the change.
    """

    place: int
    since: int
    size: float
    change: Change


@dataclass(frozen=True)
class Dated:
    """When a change began, as numbers of nights: the first with it, and the last before it."""

    since: int
    before: int | None
    stamps: Sequence[Stamp]

    @property
    def commits(self) -> tuple[str, str]:
        """Of both nights; '' where there is none before."""
        return self.stamps[self.before].commit if self.before is not None else "", self.stamps[self.since].commit

    @property
    def night(self) -> str:
        """The first with it."""
        return self.stamps[self.since].night

    @property
    def date(self) -> str:
        """Of that night."""
        return self.stamps[self.since].date


def between(commits: tuple[str, str]) -> str:
    """The commit range in words."""
    before, behind = commits
    if before == behind:
        return f"both nights have commit {behind}"
    return f"between commits {before} and {behind}" if before else f"commit {behind}"


def lasting(nights: int) -> str:
    """How many nights it has lasted, in words."""
    return "1 night" if nights == 1 else f"{nights} nights"
