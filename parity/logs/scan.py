"""Looks for fallback lines in logs; what to look for is data, `fallbacks.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files as packaged
from pathlib import Path
from typing import BinaryIO

from parity import files, limits
from parity.compare.report import FAIL, INCONCLUSIVE, PASS
from parity.errors import UsageError

# Colours, and what a progress bar overwrote, are no part of a line.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Fallback:
    """One kind of line.

    Args:
        id: its name.
        tool: whose log it is in.
        pattern: regular expression, searched in a line without regard to case.
        example: a real line.
        reason: what runs instead, and why that matters to a comparison.
        sources: where the line was met, or where it is written.
    """

    id: str
    tool: str
    pattern: re.Pattern[str]
    example: str
    reason: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class FallbackLine:
    """A line that says so; `line` counts from 1."""

    file: str
    line: int
    text: str
    fallback: Fallback


@dataclass(frozen=True)
class LogScan:
    """What was read and found.

    Args:
        lines: of each file that are not blank.
    """

    lines: dict[str, int]
    hits: tuple[FallbackLine, ...]

    @property
    def verdict(self) -> str:
        """Fail where a line was found; inconclusive where a file holds nothing, or there is no file."""
        if self.hits:
            return FAIL
        return PASS if self.lines and all(self.lines.values()) else INCONCLUSIVE


@cache
def fallbacks() -> tuple[Fallback, ...]:
    """The table, in order: the first pattern that matches a line names it."""
    rows = tomllib.loads(packaged("parity.logs").joinpath("fallbacks.toml").read_text(encoding="utf-8"))["fallback"]
    return tuple(
        Fallback(**row | {"pattern": re.compile(row["pattern"], re.IGNORECASE), "sources": tuple(row["sources"])})
        for row in rows
    )


def scan(logs: Sequence[tuple[str, BinaryIO | Path]]) -> LogScan:
    """Read logs by name.

    Raises:
        UsageError: a log that is no text.
        OSError: a file that cannot be read.
    """
    lines: dict[str, int] = {}
    hits: list[FallbackLine] = []
    for name, log in logs:
        if isinstance(log, Path):
            with files.opened(log, "log") as opened:
                lines[name] = sum(1 for _ in _read(name, opened, hits))
        else:
            lines[name] = sum(1 for _ in _read(name, log, hits))
    return LogScan(lines, tuple(hits))


def _read(name: str, log: BinaryIO, hits: list[FallbackLine]) -> Iterator[None]:
    """Once for each line that is not blank; its hit goes to `hits`."""
    for number, raw in enumerate(iter(lambda: log.readline(limits.LINE_BYTES), b""), 1):
        if len(raw) == limits.LINE_BYTES:
            raise UsageError(
                f"{name}: line {number} is longer than {limits.LINE_BYTES} bytes; a log is text, line by line"
            )
        if b"\0" in raw:
            raise UsageError(f"{name}: line {number} holds a zero byte; a log is text in UTF-8, unpacked")
        text = _CONTROL.sub("", raw.decode("utf-8", errors="replace")).strip()
        if text:
            yield
        for fallback in fallbacks():
            if fallback.pattern.search(text):
                hits.append(FallbackLine(name, number, text, fallback))
                break
