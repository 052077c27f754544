"""What a long job tells its caller: how far it is, and what it could not find out."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Told (done, total, what is at work)."""


def quiet(done: int, total: int, name: str) -> None:
    """No progress."""


def note(sentence: str) -> None:
    """Say what could not be told, as a warning of the logger `parity`."""
    import logging

    logging.getLogger("parity").warning("%s", sentence)


def print_notes() -> None:
    """Print notes on standard error as the command line does: one line each, behind `parity:`."""
    import logging

    from parity.plain import echo

    class Printed(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            echo(f"parity: {record.getMessage()}", err=True)

    logger = logging.getLogger("parity")
    if not any(type(handler).__name__ == Printed.__name__ for handler in logger.handlers):
        logger.addHandler(Printed())
        logger.propagate = False
