"""Cells that want somebody to look, grouped by what is wrong with them: one defect is told once, whatever it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parity.compare.report import DISPUTED, FAIL, RANK, join
from parity.reports.page.cells import CellView
from parity.reports.page.figures import count

KINDS = ("regression", "broken", "drift")
"""Changes that tell since when a cell is red, the most telling first."""


@dataclass(frozen=True)
class NightCause:
    """One thing that is wrong.

    Args:
        title: the defect; or the first place or the error that the cells share, where none is known.
        of: cells in the night.
        since: `since tonight`, `since 2026-11-20`; '' where history does not say.
        evidence: what the diagnosis says of the first of the cells, with the usual fix; '' where there is none.
    """

    title: str
    verdict: str
    cells: tuple[CellView, ...]
    of: int
    since: str
    evidence: tuple[str, str]

    @property
    def extent(self) -> str:
        """`3 of 4 cells, since tonight`."""
        counted = f"{len(self.cells)} of {count(self.of, 'cell')}" if self.of > 1 else ""
        return ", ".join(filter(None, (counted, self.since)))

    @property
    def reproduce(self) -> str:
        """The command of the first cell that has one."""
        return next((cell.reproduce for cell in self.cells if cell.reproduce), "")


Reason = tuple[str, tuple[str, str]]
"""Title and evidence."""


def causes(cells: Sequence[CellView], night: str) -> tuple[NightCause, ...]:
    """The causes of all red cells, gravest first, then the widest; a cell with several defects is in each of theirs."""
    members: dict[str, list[tuple[CellView, Reason]]] = {}
    for cell in cells:
        for reason in _reasons(cell) if cell.red else ():
            members.setdefault(reason[0], []).append((cell, reason))
    found = [
        NightCause(
            title=title,
            verdict=join(cell.verdict for cell, _ in group),
            cells=tuple(cell for cell, _ in group),
            of=len(cells),
            since=_since([cell for cell, _ in group], night),
            evidence=group[0][1][1],
        )
        for title, group in members.items()
    ]
    return tuple(sorted(found, key=lambda cause: (-RANK[cause.verdict], -len(cause.cells))))


def _reasons(cell: CellView) -> Iterator[Reason]:
    """What is wrong with a cell: its named defects; without one the error, or where it shows first."""
    if cell.error:
        yield cell.error.replace(cell.name, "…"), ("", "")
        return
    named = list(_named(cell))
    yield from named
    if not named:
        yield _place(cell), ("", "")
    elif cell.diagnosis and cell.diagnosis.unexplained:
        yield f"Unexplained at {cell.diagnosis.unexplained}", ("", "")


def _named(cell: CellView) -> Iterator[Reason]:
    if (told := cell.diagnosis) is None:
        return
    titles = told.titles or (told.words,) * len(told.causes)
    shown: dict[str, tuple[str, str]] = {}
    for title, (name, says, fix) in zip(titles, told.causes, strict=False):
        if title and name:
            shown.setdefault(title[:1].upper() + title[1:], (says, fix))
    yield from shown.items()


def _place(cell: CellView) -> str:
    first = cell.first if cell.first.startswith("gate ") else cell.first.split(",")[0]
    if cell.verdict == FAIL:
        return f"Wrong first at {first}" if first else "Wrong"
    return f"{'References disagree' if cell.verdict == DISPUTED else 'No evidence'}{': ' if first else ''}{first}"


def _since(cells: Sequence[CellView], night: str) -> str:
    """The earliest night since which one of the cells is red; '' where one has been for as long as history goes."""
    changes = [
        next((shown.change for kind in KINDS for shown in cell.changes if shown.change.kind == kind), None)
        for cell in cells
    ]
    known = [change for change in changes if change is not None]
    if len(known) < len(cells):
        return ""
    first = min(known, key=lambda change: change.since_night)
    return "since tonight" if first.since_night == night else f"since {first.since_date}"
