"""What a folder tells, ready for a page: that of a night, or of a run by itself."""

from __future__ import annotations

from pathlib import Path

from parity.errors import UsageError
from parity.golden.manifest import FILE
from parity.golden.store import Dump
from parity.golden.views import TrustedGolden
from parity.nightly.folder import NIGHT, NightFolder
from parity.nightly.judge import night_of
from parity.producers import ReferenceRerun
from parity.progress import Progress, quiet
from parity.reports.page.night import NightView, tell
from parity.reports.page.past import read_past


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
    logs = {one.cell.name: folder.log_tail(one.cell.name, one.repeat) for one in results if one.error}
    return tell(night, results, past, logs)


def run_view(path: Path, golden: TrustedGolden, policy: str | None, progress: Progress = quiet) -> NightView:
    """What a run tells when it is judged by a golden.

    Raises:
        UsageError: it is no run.
    """
    run = Dump(path)
    if run.manifest.kind != "run":
        raise UsageError(f"{path} is a golden; a report tells what a device's run or a night found")
    night, result = night_of(golden, run, policy, ReferenceRerun(progress))
    return tell(night, [result])


def refuse_other(path: Path) -> None:
    """Refuse a folder that is neither a night's nor a run's.

    Raises:
        UsageError: it is.
    """
    if not (path / FILE).is_file():
        raise UsageError(f"{path} is neither the folder of a night (night.json) nor of a run (manifest.json)")
