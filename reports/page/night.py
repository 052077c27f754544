"""What a page shows of a night, or of a run alone: the verdict, its cells, what changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from parity.compare.report import conclude
from parity.errors import UsageError
from parity.golden.manifest import FILE
from parity.golden.reading import read_manifest
from parity.golden.store import Dump
from parity.golden.views import TrustedGolden
from parity.layers import refuse_layers
from parity.nightly.folder import NIGHT, REPORT, NightFolder
from parity.nightly.judge import night_of
from parity.nightly.records import CellResult, Night
from parity.oracles import ReferenceRerun
from parity.progress import Progress, quiet
from parity.reports.page.causes import NightCause, causes
from parity.reports.page.cells import CellView, counts, tally, view
from parity.reports.page.past import Past, read_past

SAYS = {
    "pass": "Every cell passes.",
    "warn": "Every cell passes, some with a warning.",
    "fail": "At least one cell is wrong.",
    "disputed": "References disagree: no fault is shown, and nothing is proved.",
    "inconclusive": "Evidence is missing, which is never a pass.",
}


RUN_SAYS = {
    "pass": "The run agrees with its golden.",
    "warn": "The run agrees with its golden, with a warning.",
    "fail": "The run is wrong.",
    "disputed": "References disagree: no fault is shown, and nothing is proved.",
    "inconclusive": "Evidence is missing, which is never a pass.",
}


@dataclass(frozen=True)
class NightLink:
    """Another night's name, and its page as seen from this one."""

    name: str
    address: str


@dataclass(frozen=True)
class NightView:
    """A night, ready for the template and for Markdown.

    Args:
        alone: it is one run compared with its golden, and no night.
        before, behind: the pages of the nights beside it.
    """

    night: Night
    verdict: str
    says: str
    tally: str
    cells: tuple[CellView, ...]
    past: Past
    versions: dict[str, str]
    seconds: float
    alone: bool = False
    before: NightLink | None = None
    behind: NightLink | None = None

    @property
    def red(self) -> tuple[CellView, ...]:
        """Cells that want somebody to look, failures first."""
        return tuple(sorted((cell for cell in self.cells if cell.red), key=lambda cell: cell.verdict != "fail"))

    @property
    def counts(self) -> dict[str, int]:
        """Cells by verdict as it is told, gravest first."""
        return counts(self.cells)

    @property
    def causes(self) -> tuple[NightCause, ...]:
        """What is wrong, each thing once."""
        return causes(self.cells, self.night.name)

    @property
    def ids(self) -> dict[str, str]:
        """Where on the page a cell is."""
        return {cell.name: cell.id for cell in self.cells}


def make_view(
    night: Night, results: Sequence[CellResult], past: Past | None = None, logs: Mapping[str, str] | None = None
) -> NightView:
    """Everything a page needs; planned cells without a result count as inconclusive.

    Args:
        logs: by cell, the end of what it printed.
    """
    by_name, past, logs = {result.cell.name: result for result in results}, past or Past(), logs or {}
    cells = tuple(
        view(number, cell, by_name.get(cell.name), past, logs.get(cell.name, ""))
        for number, cell in enumerate(night.cells, 1)
    )
    verdict = conclude(cell.verdict for cell in cells)
    names = dict.fromkeys(name for result in results for name in result.versions)
    versions = {name: _joined(result.versions.get(name) for result in results) for name in names}
    return NightView(
        night, verdict, SAYS[verdict], tally(cells), cells, past, versions, sum(result.seconds for result in results)
    )


def _joined(values: Iterable[str | None]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def view_of(folder: Path, golden: TrustedGolden | None, policy: str | None, history: str | None) -> NightView:
    """What the folder of a night or of a run tells; see `parity.api.write_report`.

    Raises:
        UsageError: it is neither, or a run comes without a golden.
    """
    if (folder / NIGHT).is_file():
        return night_view(folder, history)
    refuse_other(folder)
    if golden is None:
        raise UsageError(f"{folder} is a run: a report of it needs the golden that judges it")
    return run_view(folder, golden, policy)


def night_view(path: Path, history: str | None) -> NightView:
    """What a night's folder tells, with what the history at this URL adds."""
    folder = NightFolder(path)
    night, results = folder.night, folder.worst()
    past = read_past(history, night.name, [cell.name for cell in night.cells]) if history else None
    logs = {broken.cell.name: folder.log_tail(broken.cell.name, broken.repeat) for broken in results if broken.error}
    before, behind = (_link(other) if other else None for other in folder.beside())
    return replace(make_view(night, results, past, logs), before=before, behind=behind)


def _link(other: NightFolder) -> NightLink:
    return NightLink(other.night.name, f"../{quote(other.path.name)}/{REPORT}")


def run_view(path: Path, golden: TrustedGolden, policy: str | None, progress: Progress = quiet) -> NightView:
    """What a run tells when it is judged by a golden.

    Raises:
        UsageError: it is no run.
    """
    run = Dump(path)
    refuse_layers(run, "a report")
    night, result = night_of(golden, run, policy, ReferenceRerun(progress))
    view = make_view(night, [result])
    counted = " ".join(view.cells[0].counted.values())
    return replace(view, alone=True, says=RUN_SAYS[view.verdict], tally=counted)


def refuse_other(path: Path) -> None:
    """Refuse a folder that is neither a night's nor a run's.

    Raises:
        UsageError: it is, or not there.
    """
    if not path.exists():
        raise UsageError(f"{path}: there is no such folder")
    if not (path / FILE).is_file():
        raise UsageError(f"{path} is neither the folder of a night (night.json) nor of a run (manifest.json)")
    if read_manifest(path).kind != "run":
        raise UsageError(f"{path} is a golden; a report tells what a device's run or a night found")
