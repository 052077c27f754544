"""How `parity nightly` ends: with everything written and said, or interrupted."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.cli.options import write_json
from parity.errors import ParityError
from parity.nightly.folder import REPORT
from parity.plain import echo

if TYPE_CHECKING:
    from parity.history.changes import Change
    from parity.nightly.folder import NightFolder
    from parity.nightly.kept import KeptNight
    from parity.nightly.records import CellResult


def end(folder: NightFolder, history: str, github: bool, json_file: Path | None, at: KeptNight | None = None) -> int:
    """Everything that is written and said at the end; the exit code.

    The results are kept already: what cannot be written takes nothing from them, nor from what is written beside it.
    Everything tells of each cell the worst that it found, measured again or not.
    """
    from parity.compare.report import exit_code
    from parity.nightly.outputs import github_annotations, verdict_of, write_outputs
    from parity.reports.nightly import print_night

    results, verdict = folder.worst(), verdict_of(folder)
    code = exit_code(verdict)
    kept = not history or tried("the night is not in the history", lambda: _append(history, folder))
    written = tried("results.jsonl and junit.xml are not written", lambda: write_outputs(folder))
    changes: list[Change] = []
    told = tried(f"{REPORT} is not written", lambda: changes.extend(_tell(folder, history if kept else "")))
    stored = at is None or tried(f"the night is whole in {folder.path}, not at its URL", lambda: at.end(folder))
    if github or os.environ.get("GITHUB_ACTIONS") == "true":
        for line in github_annotations(folder, results):
            echo(line)
    code = code or (0 if kept and written and told and stored else 3)
    print_night(folder, results, changes, verdict, REPORT if told else "", at.url if at and stored else "")
    write_json(json_file, lambda: _as_json(folder, results, changes, verdict, code))
    return code


def tried(otherwise: str, make: Callable[[], None]) -> bool:
    """Whether it could be made; why not is said on standard error."""
    try:
        make()
    except (ParityError, OSError) as error:
        echo(f"parity: {otherwise}: {error}", err=True)
        return False
    return True


def _append(history: str, folder: NightFolder) -> None:
    from parity.history import append

    append(history, folder.night, folder.measured())


def _tell(folder: NightFolder, history: str) -> list[Change]:
    """The page, and the summary of a job where there is one; what changed since when."""
    from parity.reports.page.markdown import markdown
    from parity.reports.page.night import night_view
    from parity.reports.page.render import write

    view = night_view(folder.path, history)
    write(view, folder.path / REPORT)
    if history and (before := folder.beside()[0]):
        lead = "the page of the night before does not lead to this one"
        tried(lead, lambda: write(night_view(before.path, history), before.path / REPORT))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdown(view))
    return [shown.change for shown in view.past.changes if shown.change.kind != "new"]


def _as_json(
    folder: NightFolder, results: Sequence[CellResult], changes: Sequence[Change], verdict: str, code: int
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "night": folder.night.model_dump(mode="json", exclude={"cells"}),
        "folder": str(folder.path),
        "verdict": verdict,
        "exit_code": code,
        "cells": [
            {
                "name": one.cell.name,
                "repeat": one.repeat,
                "verdict": one.verdict,
                "seconds": one.seconds,
                "error": one.error,
                "first": one.first,
                "reproduce": one.reproduce,
                "diagnosis": one.diagnosis.words if one.diagnosis else "",
            }
            for one in results
        ],
        "not_run": folder.missing(),
        "changes": [asdict(change) for change in changes],
    }


@contextmanager
def interruptible(folder: NightFolder, again: str) -> Iterator[None]:
    """Finished cells stay; says how the night continues."""
    try:
        yield
    except KeyboardInterrupt as error:
        planned = len(folder.night.cells)
        echo(
            f"parity: interrupted with {planned - len(folder.missing())} of {planned} cells done; `{again}` continues "
            "with the others",
            err=True,
        )
        sys.exit(128 + getattr(error, "number", signal.SIGINT))
