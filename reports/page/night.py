"""What a page shows of a night: the verdict, its cells, what changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parity.compare.report import conclude
from parity.nightly.records import CellResult, Night
from parity.reports.page.cells import CellView, tally, view
from parity.reports.page.past import Past

SAYS = {
    "pass": "Every cell holds.",
    "warn": "Every cell holds, some with a warning.",
    "fail": "At least one cell is wrong.",
    "disputed": "References disagree: no fault is shown, and nothing is proved.",
    "inconclusive": "Evidence is missing, which is no pass.",
}


@dataclass(frozen=True)
class NightView:
    """A night, ready for the template and for Markdown."""

    night: Night
    verdict: str
    says: str
    tally: str
    cells: tuple[CellView, ...]
    past: Past
    versions: dict[str, str]
    seconds: float

    @property
    def red(self) -> tuple[CellView, ...]:
        """Cells that want somebody to look, failures first."""
        return tuple(sorted((cell for cell in self.cells if cell.red), key=lambda cell: cell.verdict != "fail"))

    @property
    def ids(self) -> dict[str, str]:
        """Where on the page a cell is."""
        return {cell.name: cell.id for cell in self.cells}


def tell(
    night: Night, results: Sequence[CellResult], past: Past | None = None, logs: Mapping[str, str] | None = None
) -> NightView:
    """Everything a page needs; planned cells without a result count as inconclusive.

    Args:
        logs: by cell, the end of what it printed.
    """
    held, past, logs = {one.cell.name: one for one in results}, past or Past(), logs or {}
    cells = tuple(
        view(number, cell, held.get(cell.name), past, logs.get(cell.name, ""))
        for number, cell in enumerate(night.cells, 1)
    )
    verdict = conclude(cell.verdict for cell in cells)
    versions = {name: _joined(one.versions.get(name) for one in results) for one in results for name in one.versions}
    return NightView(
        night, verdict, SAYS[verdict], tally(cells), cells, past, versions, sum(one.seconds for one in results)
    )


def _joined(values) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))
