"""What `parity report` prints, and the same as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text

from parity.reports.dumps import console
from parity.reports.page.night import NightView
from parity.reports.terminal import STYLE


def print_told(view: NightView, page: Path) -> None:
    """The red cells, where the page is, and the last word."""
    out = console()
    for cell in view.red:
        why = cell.error or "; ".join(filter(None, (cell.first, cell.diagnosed)))
        out.print(Text.assemble((cell.word, STYLE[cell.verdict]), f" {cell.name}: {why}"), soft_wrap=True)
    for one in view.past.worse:
        out.print(Text(one.told.sentence), soft_wrap=True)
    out.print(f"report {page}", soft_wrap=True)
    word = Text(f"night verdict: {view.verdict}", style=STYLE[view.verdict])
    word.append(f"; {view.tally}", style="default")
    first = next((cell for cell in view.red if cell.reproduce), None)
    if first is not None:
        word.append(f"; first {first.name}: {first.first}; reproduce: {first.reproduce}", style="default")
    out.print(word, soft_wrap=True)


def told(view: NightView) -> dict[str, Any]:
    """The night in short, for JSON."""
    return {
        "night": view.night.name,
        "commit": view.night.commit,
        "verdict": view.verdict,
        "cells": [
            {
                "cell": cell.name,
                "verdict": cell.verdict,
                "word": cell.word,
                "error": cell.error,
                "first": cell.first,
                "reproduce": cell.reproduce,
                "diagnosis": cell.diagnosis and cell.diagnosis.model_dump(),
            }
            for cell in view.cells
        ],
        "history": view.past.why or f"{view.past.nights} nights",
        "changes": [
            {
                name: getattr(one.told, name)
                for name in (
                    "cell",
                    "stage",
                    "mode",
                    "metric",
                    "kind",
                    "since_night",
                    "since_date",
                    "commits",
                    "sentence",
                )
            }
            for one in view.past.changes
        ],
    }
