"""What `parity scan-log` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.text import Text

from parity.logs.scan import Fallback, FallbackLine, LogScan
from parity.reports.dumps import console
from parity.reports.terminal import STYLE

SHOWN = 3
"""Lines shown of each kind in each file; the rest is counted."""


def print_scan(found: LogScan) -> None:
    """Found lines by kind with what they mean, then the verdict."""
    out = console()
    for (file, _id), hits in _grouped(found.hits).items():
        fallback = hits[0].fallback
        for hit in hits[:SHOWN]:
            out.print(f"{file}:{hit.line}: {hit.text}", soft_wrap=True)
        more = f" ({len(hits)} lines)" if len(hits) > SHOWN else ""
        out.print(f"    {fallback.id}{more}: {fallback.reason}", soft_wrap=True)
    empty = [file for file, lines in found.lines.items() if not lines]
    said = f"; nothing in {', '.join(empty)}: an empty log shows nothing" if empty else ""
    read = f"{sum(found.lines.values())} lines of {', '.join(found.lines)}"
    counts = f"{len(found.hits)} of {read} say that something else ran"
    verdict = (f"log verdict: {found.verdict}", STYLE[found.verdict])
    out.print(Text.assemble(verdict, f"; {counts}{said}"), soft_wrap=True)


def print_table(fallbacks: Iterable[Fallback]) -> None:
    """Everything that is looked for."""
    for one in fallbacks:
        text = f"{one.id} ({one.tool}): /{one.pattern.pattern}/\n    {one.reason}\n    e.g. {one.example}"
        console().print("\n    ".join([text, *one.sources]), soft_wrap=True)


def plain(found: LogScan) -> dict[str, Any]:
    """For JSON."""
    hits = [
        {"file": hit.file, "line": hit.line, "text": hit.text, "id": hit.fallback.id, "reason": hit.fallback.reason}
        for hit in found.hits
    ]
    return {"verdict": found.verdict, "lines": found.lines, "hits": hits}


def plain_table(fallbacks: Iterable[Fallback]) -> list[dict[str, Any]]:
    """For JSON."""
    return [vars(one) | {"pattern": one.pattern.pattern} for one in fallbacks]


def _grouped(hits: Iterable[FallbackLine]) -> dict[tuple[str, str], list[FallbackLine]]:
    found: dict[tuple[str, str], list[FallbackLine]] = {}
    for hit in hits:
        found.setdefault((hit.file, hit.fallback.id), []).append(hit)
    return found
