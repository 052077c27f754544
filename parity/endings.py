"""How processes end: the signals that end one, and what is said of them."""

from __future__ import annotations

import signal

OUTSIDE = tuple(getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name))
"""Signals that somebody else sends: the system short of memory, or a person."""


class Terminated(KeyboardInterrupt):
    """A signal that ends the command; `number` says which."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number


def by_signal(number: int) -> str:
    """The signal that ended a process, and what that means."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number not in OUTSIDE:
        return name
    return f"{name} ({'out of memory, or ' if name == 'SIGKILL' else ''}ended from outside)"
