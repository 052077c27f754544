"""How `parity nightly` ends: with everything written and said, or interrupted."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import click

from parity.cli.common import write_json
from parity.errors import ParityError


def end(folder, history, github, json_file) -> int:
    """Everything that is written and said at the end; the exit code."""
    from parity.nightly.outputs import annotations, verdict_of, write_outputs
    from reports.nightly import markdown, print_night

    results = folder.results()
    verdict = verdict_of(folder, results)
    code = {"fail": 1, "inconclusive": 3, "disputed": 3}.get(verdict, 0)
    write_outputs(folder)
    changes, lost = _changes(history, folder, results)
    code = code or (3 if lost else 0)
    if github or os.environ.get("GITHUB_ACTIONS") == "true":
        for line in annotations(folder, results):
            click.echo(line)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdown(folder, results, changes, verdict))
    write_json(json_file, lambda: _as_json(folder, results, changes, verdict, code))
    print_night(folder, results, changes, verdict)
    return code


def _changes(history: str, folder, results) -> tuple[list, bool]:
    """What changed since when, and whether history could not be kept: the night itself is kept all the same."""
    if not history:
        return [], False
    from parity.history import append, load, verdicts

    try:
        append(history, folder.night, results)
        found = verdicts(load(history), folder.night.name)
    except (ParityError, OSError) as error:
        click.echo(f"parity: the night is not in the history {history}: {error}", err=True)
        return [], True
    return [change for change in found if change.kind != "new"], False


def _as_json(folder, results, changes, verdict: str, code: int) -> dict:
    from dataclasses import asdict

    return {
        "night": folder.night.model_dump(mode="json", exclude={"cells"}),
        "folder": str(folder.path),
        "verdict": verdict,
        "exit_code": code,
        "cells": [
            {
                "name": one.cell.name,
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


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM, whichever it was."""


@contextmanager
def interruptible(folder, again: str):
    """Finished cells stay; says how the night goes on."""

    def interrupt(number, frame):
        signal.signal(number, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Interrupted as error:
        planned = len(folder.night.cells)
        click.echo(f"parity: interrupted with {planned - len(folder.missing())} of {planned} cells done; `{again}` goes on with the others", err=True)
        sys.exit(128 + error.args[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
