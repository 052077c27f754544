"""What a long job tells its caller: how far it is, and what it could not find out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

Progress = Callable[[int, int, str], None]
"""Told (done, total, what is at work)."""


def quiet(done: int, total: int, name: str) -> None:
    """No progress."""


_notes = {"printed": False}
"""Whether the command line runs here: `logging` is loaded for a note, which most commands have none of."""


def note(sentence: str) -> None:
    """Say what could not be told, as a warning of the logger `parity`."""
    import logging

    logger = logging.getLogger("parity")
    if _notes["printed"] and logger.propagate:
        logger.addHandler(_printing())
        logger.propagate = False
    logger.warning("%s", sentence)


def print_notes() -> None:
    """Print notes on standard error as the command line does: one line each, behind `parity:`."""
    _notes["printed"] = True


def _printing() -> logging.Handler:
    import logging

    from parity.plain import echo

    class Printed(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            echo(f"parity: {record.getMessage()}", err=True)

    return Printed()
