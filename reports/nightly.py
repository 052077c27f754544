"""A night on the terminal: a line a cell as it ends, then the table, what changed, and the last word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from parity.compare.report import INCONCLUSIVE, PASS, WARN
from parity.nightly.folder import NightFolder
from parity.nightly.records import Cell, CellResult
from parity.reports.console import STYLE, console

if TYPE_CHECKING:
    from parity.history import Change
    from parity.reports.page.night import NightView

AXES = ("case", "device", "family", "k", "tp", "policy")
BROKEN = "broken"
CHANGE_FIELDS = ("cell", "stage", "mode", "metric", "kind", "since_night", "since_date", "commits", "sentence")


def word(result: CellResult) -> str:
    """The verdict; a cell that broke is called so."""
    return BROKEN if result.error else result.verdict


def print_plan(cells: Sequence[Cell], obstacles: Mapping[str, Sequence[str]]) -> None:
    """The cells, what each stands for, and why some cannot be conclusive."""
    out = console()
    for cell in cells:
        golden = f", golden {cell.golden}" if cell.golden else ""
        bounds = f", bounds {cell.bounds}" if cell.bounds else ""
        out.print(Text(cell.name, style="bold"), soft_wrap=True)
        out.print(
            f"    --device {cell.device} --precision {cell.precision}{bounds}{golden}; gates {', '.join(cell.gates)}",
            soft_wrap=True,
        )
        for why in obstacles.get(cell.name, ()):
            out.print(Text(f"    cannot be conclusive: {why}", style=STYLE[INCONCLUSIVE]), soft_wrap=True)
    out.print(f"{len(cells)} cells" + (f", {len(obstacles)} of them cannot be conclusive" if obstacles else ""))


def print_cell(result: CellResult, ended: int, planned: int) -> None:
    """One line, as soon as the cell ends."""
    line = Text(f"{word(result):<13}", style=STYLE[result.verdict])
    line.append(f"{ended}/{planned} {result.cell.name}, {result.seconds:.0f} s", style="default")
    if why := result.error or (result.first if result.verdict not in (PASS, WARN) else ""):
        line.append(f": {why}", style="default")
    console().print(line, soft_wrap=True)


def print_night(
    folder: NightFolder,
    results: Sequence[CellResult],
    changes: Sequence[Change],
    verdict: str,
    page: str = "",
    url: str = "",
) -> None:
    """The table, what changed since when, where the night lies, and the last line."""
    out = console()
    out.print(_table(results))
    for change in changes:
        out.print(f"{change.kind}: {change.sentence}", soft_wrap=True)
    for place in filter(None, (str(folder.path), url)):
        out.print(f"night  {place}", style="dim", soft_wrap=True)
    if page:
        out.print(f"report {folder.path / page}", style="dim", soft_wrap=True)
    out.print(last_line(folder, results, verdict), soft_wrap=True)


def _table(results: Sequence[CellResult]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("verdict", *AXES):
        table.add_column(heading, no_wrap=True)
    for heading in ("worst local", "worst chained", "AL", "over plain", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        axes = result.cell.axes
        figures = (
            *(_worst(result, mode) for mode in ("local", "chained")),
            _acceptance(result),
            _speed(result),
            f"{result.seconds:.0f}",
        )
        table.add_row(
            Text(word(result), style=STYLE[result.verdict]), *(str(getattr(axes, axis)) for axis in AXES), *figures
        )
    return table


def _worst(result: CellResult, mode: str) -> str:
    """The largest L2 of any stage, in the unit of its judge."""
    errors = [metric for metric in result.metrics if metric.mode == mode and metric.name == "l2"]
    if not errors:
        return ""
    worst = max(errors, key=lambda metric: metric.value)
    return f"{worst.value:.2f} x noise" if worst.unit == "x noise" else f"{worst.value:.1e}"


def _acceptance(result: CellResult) -> str:
    lengths = [metric.value for metric in result.metrics if metric.name == "acceptance_length"]
    return f"{lengths[0]:.3f}" if lengths else ""


def _speed(result: CellResult) -> str:
    return "" if result.over_plain is None else f"{result.over_plain:.2f}"


def last_line(folder: NightFolder, results: Sequence[CellResult], verdict: str) -> Text:
    """The verdict with counts, then the first cell that is as bad: where it shows first, the command to repeat it."""
    unasked = [*("not run" for _ in folder.missing()), *("left out" for _ in folder.night.left_out)]
    counts = Counter([*map(word, results), *unasked])
    line = Text(f"nightly verdict: {verdict}", style=STYLE[verdict])
    line.append(f" ({', '.join(f'{count} {name}' for name, count in counts.items())})", style="default")
    first = next((result for result in results if result.verdict == verdict and verdict not in (PASS, WARN)), None)
    if first is not None and first.error:
        line.append(
            f"; {first.title}: {first.error}; its output: {folder.log_file(first.cell.name, first.repeat)}",
            style="default",
        )
    elif first is not None:
        line.append(f"; {first.title}: first divergent: {first.first}; reproduce: {first.reproduce}", style="default")
    return line


def print_view(view: NightView, page: Path) -> None:
    """The red cells, where the page is, and the last word."""
    out = console()
    for cell in view.red:
        why = cell.error or "; ".join(filter(None, (cell.first, cell.diagnosed)))
        out.print(Text.assemble((cell.word, STYLE[cell.verdict]), f" {cell.name}: {why}"), soft_wrap=True)
    for changed in view.past.worse:
        out.print(Text(changed.change.sentence), soft_wrap=True)
    out.print(f"report {page}", soft_wrap=True)
    word = Text(f"{'run' if view.alone else 'night'} verdict: {view.verdict}", style=STYLE[view.verdict])
    word.append(f"; {view.tally}", style="default")
    first = next((cell for cell in view.red if cell.reproduce), None)
    if first is not None:
        word.append(f"; first {first.name}: {first.first}; reproduce: {first.reproduce}", style="default")
    out.print(word, soft_wrap=True)


def night_data(view: NightView) -> dict[str, Any]:
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
        "changes": [{name: getattr(changed.change, name) for name in CHANGE_FIELDS} for changed in view.past.changes],
    }
