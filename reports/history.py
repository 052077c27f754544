"""What history prints: figures with their trend, nights, what changed, and bounds that could be lower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from parity.history.changes import Change, counted, counted_words
from parity.history.ratchet import Proposal
from parity.history.series import Figure
from parity.reports.console import STYLE, console

BARS = "▁▂▃▄▅▆▇█"
GAP = "·"
KINDS = {
    "regression": "bold red",
    "drift": "bold red",
    "broken": "magenta",
    "gone": "magenta",
    "improvement": "green",
    "new": "cyan",
    "golden": "cyan",
    "moved": "dim",
    "acknowledged": "dim",
}
FIGURE_COLUMNS = ("stage", "mode", "figure", "latest", "bound", "least", "largest", "nights", "trend", "unit")
PROPOSAL_COLUMNS = ("stages", "statistic", "bound", "proposed", "largest clean", "nights", "why")


def sparkline(values: Sequence[float | None], width: int = 30) -> str:
    """The latest values as bars from their least to their largest; a dot where a night has none."""
    shown = values[-width:]
    known = [value for value in shown if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    return "".join(GAP if value is None else BARS[_height(value, low, high)] for value in shown)


def _height(value: float, low: float, high: float) -> int:
    return 3 if high == low else round((value - low) / (high - low) * (len(BARS) - 1))


def _table(*headings: str, right: Sequence[str] = (), title: str = "") -> Table:
    table = Table(
        title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for heading in headings:
        table.add_column(
            heading, justify="right" if heading in right else "left", no_wrap=heading not in ("cells by verdict", "why")
        )
    return table


def print_figures(figures: Sequence[Figure], most: int, narrowed: bool) -> None:
    """One line a figure: latest value, what its nights range over, and the trend."""
    out = console()
    if not figures:
        out.print("no figure of history matches")
        return
    for cell in dict.fromkeys(figure.cell for figure in figures[:most]):
        table = _table(*FIGURE_COLUMNS, title=cell, right=("latest", "bound", "least", "largest", "nights"))
        for figure in figures[:most]:
            if figure.cell == cell and figure.known:
                numbers = (
                    "-" if value is None else f"{value:.4g}"
                    for value in (figure.values[-1], figure.bound, min(figure.known), max(figure.known))
                )
                style = STYLE.get(figure.verdict) if figure.verdict not in ("pass", "not judged") else None
                table.add_row(
                    figure.stage,
                    figure.mode,
                    figure.metric,
                    *numbers,
                    str(len(figure.known)),
                    sparkline(figure.values),
                    figure.unit,
                    style=style,
                )
        out.print(table)
    if len(figures) > most:
        out.print(f"{len(figures) - most} more figures; narrow with --cell, --stage, --metric, or raise --rows")
    elif not narrowed:
        out.print("--stage, --metric and --cell show other figures: --stage 'drafter.*' --metric l2", style="dim")


def print_nights(nights: Sequence[Mapping[str, Any]]) -> None:
    """One line a night."""
    out = console()
    table = _table("night", "date", "commit", "machine", "cells", "cells by verdict", right=("cells",))
    for night in nights:
        told = Text(", ").join(
            Text(f"{count} {verdict}", style=STYLE.get(verdict, "")) for verdict, count in night["verdicts"].items()
        )
        commit = f"{night['commit'][:12] or '-'}{' (dirty)' if night['dirty'] else ''}"
        table.add_row(night["night"], night["date"], commit, night["machine"], str(night["cells"]), told)
    out.print(table)


def print_changes(night: str, changes: Sequence[Change], waiting: Mapping[str, int]) -> int:
    """One line a change, then the last word; the exit code."""
    out = console()
    for change in changes:
        out.print(Text.assemble((f"{change.kind:13}", KINDS[change.kind]), change.sentence), soft_wrap=True)
    for cell, missing in waiting.items():
        nights = "night" if missing == 1 else "nights"
        out.print(
            Text.assemble(
                (f"{'no verdict':13}", "magenta"),
                f"{cell}: {missing} more {nights} until its figures have a noise band",
            ),
            soft_wrap=True,
        )
    counts = counted((change.kind for change in changes), len(waiting))
    code = 1 if counts[0] else 3 if counts[1] else 0
    out.print(
        Text(
            f"up to night {night}: {counted_words(counts)}",
            style=STYLE[{0: "pass", 1: "fail", 3: "inconclusive"}[code]],
        ),
        soft_wrap=True,
    )
    return code


def print_proposals(policy: str, proposals: Sequence[Proposal]) -> None:
    """Every bound: what it is, what it could be, and why."""
    out = console()
    right = ("bound", "proposed", "largest clean", "nights")
    table = _table(*PROPOSAL_COLUMNS, title=f"policy {policy}", right=right)
    for proposal in proposals:
        largest = "-" if proposal.largest != proposal.largest else f"{proposal.largest:.3g}"
        new = f"{proposal.new:g}" if proposal.tighter else "-"
        table.add_row(
            proposal.stages,
            proposal.statistic,
            f"{proposal.old:g}",
            new,
            largest,
            str(proposal.nights),
            proposal.why,
            style="bold green" if proposal.tighter else None,
        )
    out.print(table)
