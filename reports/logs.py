"""What `parity scan-log` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.text import Text

from parity.logs.scan import Fallback, FallbackLine, LogScan
from parity.reports.console import STYLE, console

SHOWN = 3
"""Lines shown of each kind in each file; the rest is counted."""


def print_scan(scan: LogScan) -> None:
    """Found lines by kind with what they mean, then the verdict."""
    out = console()
    for (file, _id), hits in _grouped(scan.hits).items():
        fallback = hits[0].fallback
        for hit in hits[:SHOWN]:
            out.print(f"{file}:{hit.line}: {hit.text}", soft_wrap=True)
        more = f" ({len(hits)} lines)" if len(hits) > SHOWN else ""
        out.print(f"    {fallback.id}{more}: {fallback.reason}", soft_wrap=True)
    empty = [file for file, lines in scan.lines.items() if not lines]
    said = f"; nothing in {', '.join(empty)}: an empty log shows nothing" if empty else ""
    read = f"{sum(scan.lines.values())} lines of {', '.join(scan.lines)}"
    counts = f"{len(scan.hits)} of {read} say that something else ran"
    verdict = (f"log verdict: {scan.verdict}", STYLE[scan.verdict])
    out.print(Text.assemble(verdict, f"; {counts}{said}"), soft_wrap=True)


def print_table(fallbacks: Iterable[Fallback]) -> None:
    """Everything that is looked for."""
    for fallback in fallbacks:
        text = f"{fallback.id} ({fallback.tool}): /{fallback.pattern.pattern}/"
        text += f"\n    {fallback.reason}\n    e.g. {fallback.example}"
        console().print("\n    ".join([text, *fallback.sources]), soft_wrap=True)


def plain(scan: LogScan) -> dict[str, Any]:
    """For JSON."""
    hits = [
        {"file": hit.file, "line": hit.line, "text": hit.text, "id": hit.fallback.id, "reason": hit.fallback.reason}
        for hit in scan.hits
    ]
    return {"verdict": scan.verdict, "lines": scan.lines, "hits": hits}


def plain_table(fallbacks: Iterable[Fallback]) -> list[dict[str, Any]]:
    """For JSON."""
    return [vars(fallback) | {"pattern": fallback.pattern.pattern} for fallback in fallbacks]


def _grouped(hits: Iterable[FallbackLine]) -> dict[tuple[str, str], list[FallbackLine]]:
    groups: dict[tuple[str, str], list[FallbackLine]] = {}
    for hit in hits:
        groups.setdefault((hit.file, hit.fallback.id), []).append(hit)
    return groups
