"""Which cells of a night are measured again: those whose figures look changed beside history, until the repeats tell."""

from __future__ import annotations

from parity.compare.report import PASS, WARN
from parity.errors import UsageError
from parity.nightly.records import CellResult, Night


class Suspicion:
    """Asks history, read once, about each result as it comes.

    Args:
        url: of the history that the night will be appended to. One that is not there, or cannot be read, suspects nothing:
            the end of the night says so.
        most: repeats of a cell.
    """

    def __init__(self, url: str, night: Night, most: int):
        from parity.history import WINDOW, load

        self.night, self.most = night, most
        try:
            frame = load(url, last=WINDOW, repeats=True)
            self.frame = frame[frame["night"] != night.name]
        except UsageError:
            self.frame = None

    def __call__(self, found: tuple[CellResult, ...]) -> bool:
        """Whether the cell of these results is measured once more; what did not end well needs no statistics."""
        if self.frame is None or len(found) > self.most or any(one.verdict not in (PASS, WARN) for one in found):
            return False
        from parity.history import suspicious

        return suspicious(self.frame, self.night, found)
