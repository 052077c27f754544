"""The console that everything prints on, and the styles of verdicts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from parity.compare.report import FORCED
from parity.plain import printable, unread

STYLE = {
    "pass": "green",
    "warn": "yellow",
    "fail": "bold red",
    "inconclusive": "magenta",
    "disputed": "bold magenta",
    "not judged": "dim",
}
"""Verdict to its style."""


class SafeConsole(Console):
    """Prints foreign text as it is: nothing in it is markup, and no character reaches the terminal as a control."""

    def __init__(self, **options: Any):
        super().__init__(highlight=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:
        """Prints to nobody from now on, where rich would end the process with 1."""
        self.quiet = True
        unread()

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich's, where a table cannot ask for markup again."""
        return super().render_str(text, **options | {"markup": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments without control characters, but for those that rich itself marks as such."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def console() -> Console:
    """Standard output; wide enough for a table where it is no terminal and nobody says how wide it is (COLUMNS)."""
    out = SafeConsole()
    return out if out.is_terminal or _columns() else SafeConsole(width=160)


def _columns() -> bool:
    return os.environ.get("COLUMNS", "").isdigit()


def say(out: Console, text: str | Text, head: str | Text = "") -> None:
    """One statement behind a head: wrapped between words where a width is known, and indented; in a pipe one line."""
    head, text = (Text(one) if isinstance(one, str) else one for one in (head, text))
    if not (out.is_terminal or _columns()):
        out.print(head + text, soft_wrap=True)
        return
    for number, line in enumerate(text.wrap(out, max(out.width - head.cell_len, 20))):
        line.rstrip()
        out.print((Text(" " * head.cell_len) if number else head) + line, soft_wrap=True)


def families_counted(words: Mapping[str, str], stages: int) -> str:
    """`23 families of 80 stages: 1 fail, 20 pass, 2 forced`: verdicts by family, as every table of them ends."""
    counts = Counter(words.values())
    told = [f"{counts[word]} {word}" for word in (*STYLE, FORCED) if counts[word]]
    return f"{len(words)} families of {stages} stages: {', '.join(told)}"
