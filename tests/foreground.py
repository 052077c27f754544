"""A job in the background ignores SIGINT and SIGHUP, and so does all that it starts: tests could not interrupt it."""

from __future__ import annotations

import signal


def restore_signals() -> None:
    """Give both their usual meaning again where they are ignored."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
