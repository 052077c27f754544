"""A progress bar on standard error, below what is printed meanwhile; a line now and then where that is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from time import monotonic
from typing import Any, TextIO

from parity.plain import echo, printable
from parity.progress import Progress

APART = 60.0
"""Seconds without a word, at least, before a line of progress in a log: short commands have none."""


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """A progress bar on standard error from the first word of progress on; where that is no terminal, a line of it
    every `APART` seconds.

    What is printed meanwhile stands above the bar.
    """
    with ExitStack() as shown:
        show: list[Progress] = []

        def tell(done: int, total: int, name: str) -> None:
            if not show:
                show.append(_bar(what, shown))
            show[0](done, total, name)

        yield tell


def _bar(what: str, shown: ExitStack) -> Progress:
    """What moves a new bar, which is there as long as `shown`."""
    from rich import progress as rich_progress
    from rich.console import Console

    console = Console(file=sys.stderr)
    if not console.is_terminal:
        return _lines(what)
    what_is_done = rich_progress.TextColumn("{task.description}", markup=False)
    figures = rich_progress.MofNCompleteColumn(), rich_progress.TimeRemainingColumn()
    columns = what_is_done, rich_progress.BarColumn(), *figures
    bar = rich_progress.Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    )
    shown.enter_context(bar)
    shown.enter_context(redirect_stdout(_Above(bar, sys.stdout)))
    shown.enter_context(redirect_stderr(_Above(bar, sys.stderr)))
    task = bar.add_task(what, total=None)

    def tell(done: int, total: int, name: str) -> None:
        bar.update(task, completed=done, total=total, description=printable(f"{what} {name}"))

    return tell


def _lines(what: str) -> Progress:
    """Prints how far it is, where the last line or the beginning is `APART` seconds ago."""
    begun = last = monotonic()

    def tell(done: int, total: int, name: str) -> None:
        nonlocal last
        now = monotonic()
        if now - last >= APART:
            last = now
            of = f" {done}/{total}" if total else ""
            echo(f"parity: {what}{of}, {now - begun:.0f} s: {name}".removesuffix(": "), err=True)

    return tell


class _Above:
    """A stream beside a progress bar on the same terminal: the bar is taken away while a text is written.

    rich's own way sends both streams to the bar's: results would leave standard output.
    """

    def __init__(self, bar: Any, stream: TextIO):
        self._bar, self._stream = bar, stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write with the bar away, which comes back at the end of a line."""
        self._bar.stop()
        count = self._stream.write(text)
        self._stream.flush()
        if text.endswith("\n"):
            self._bar.start()
        return count
