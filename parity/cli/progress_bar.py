"""A progress bar on standard error, below what is printed meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

from parity.plain import printable
from parity.progress import Progress, quiet

if TYPE_CHECKING:
    pass


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """A progress bar on standard error from the first word of progress on, silent when that is no terminal.

    What is printed meanwhile stands above it.
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
        return quiet
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
