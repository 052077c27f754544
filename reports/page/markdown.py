"""A night in Markdown, for a pull request or a job's summary: verdict, changes, red cells; the rest folded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from parity.plain import printable
from parity.reports.page.cells import CellView
from parity.reports.page.figures import figure
from parity.reports.page.night import NightView

CHANGES, RED, CELLS = 8, 12, 14
"""Lines of each at the most: the whole stays within sixty."""
SIGNS = {"pass": "✅", "warn": "⚠️", "fail": "❌", "disputed": "❓", "inconclusive": "❔"}


def markdown(view: NightView) -> str:
    """About sixty lines at the most."""
    changes = () if view.alone else _changes(view)
    return "\n".join([*_head(view), *changes, *_red(view), *_all(view)]) + "\n"


def _head(view: NightView) -> Iterator[str]:
    night = view.night
    yield f"## {SIGNS[view.verdict]} Parity: {view.verdict}"
    yield ""
    commit = f"commit {_code(night.commit)}{' with changes' if night.dirty else ''}, " if night.commit else ""
    where = f"{commit}{_text(night.machine)}, engine {_text(night.engine)}"
    named = f"Run {_text(night.name)}, {_text(night.machine)}" if view.alone else f"Night {_text(night.name)}, {where}"
    yield f"{_text(view.tally)}. {view.says} {named}."
    yield ""


def _changes(view: NightView) -> Iterator[str]:
    yield "### Changed since last night"
    yield ""
    if not view.past.known:
        yield f"Not known: {_text(view.past.why)}."
    elif not view.past.worse:
        yield f"Nothing to look at, over {view.past.nights} nights of history."
    for changed in view.past.worse[:CHANGES]:
        yield f"- **{changed.change.kind}**: {_text(changed.change.sentence)}"
    yield from _more(len(view.past.worse) - CHANGES, "changes")
    yield ""


def _red(view: NightView) -> Iterator[str]:
    if not view.red:
        return
    yield "### Cells to look at"
    yield ""
    yield "| cell | verdict | first divergent place | diagnosis | reproduce |"
    yield "|---|---|---|---|---|"
    for cell in view.red[:RED]:
        columns = (
            _text(cell.name),
            f"{SIGNS[cell.verdict]} {cell.word}",
            _text(cell.error or cell.first),
            _text(_diagnosis(cell)),
        )
        yield f"| {' | '.join(columns)} | {_code(cell.reproduce)} |"
    yield ""
    yield from _more(len(view.red) - RED, "cells")


def _diagnosis(cell: CellView) -> str:
    fixes = [fix for _, _, fix in cell.diagnosis.causes if fix] if cell.diagnosis else []
    return cell.diagnosed + (f"; usual fix: {fixes[0]}" if fixes else "")


def _all(view: NightView) -> Iterator[str]:
    yield f"<details><summary>All {len(view.cells)} cells</summary>"
    yield ""
    yield "| cell | verdict | worst local | worst chained | acceptance, reference | speed over plain |"
    yield "|---|---|---:|---:|---:|---:|"
    for cell in view.cells[:CELLS]:
        yield f"| {_text(cell.name)} | {cell.word} | {' | '.join(_figures(cell))} |"
    yield ""
    yield from _more(len(view.cells) - CELLS, "cells")
    yield "</details>"


def _figures(cell: CellView) -> Sequence[str]:
    lengths = ", ".join(figure(length) for length in cell.lengths) if cell.lengths else "–"
    speed = figure(cell.speed.over_plain) if cell.speed else "–"
    return cell.worst.get("local", "–"), cell.worst.get("chained", "–"), lengths, speed


def _more(count: int, what: str) -> Iterator[str]:
    if count > 0:
        yield f"and {count} more {what}: see the page"
        yield ""


def _text(text: str) -> str:
    """One line of plain text: nothing in it is markup, a mention or a link."""
    line = " ".join(printable(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", line)
    return line.replace("@", "@\u200b").replace("://", ":\u200b//")


def _code(text: str) -> str:
    """Code in a table's cell: a fence longer than any of its own."""
    if not text:
        return ""
    line = " ".join(printable(text).split()).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{space}{line}{space}{fence}"
