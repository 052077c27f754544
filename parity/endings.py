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


ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a command."""

_raised: list[int] = []
"""The number of the signal that ended this command, whoever may have swallowed what was raised for it."""


def interrupting(number: int, frame: object) -> None:
    """Handler of a signal that ends the command: it unwinds, and more of them do not disturb that."""
    for one in ENDING:
        signal.signal(one, signal.SIG_IGN)
    _raised[:] = [number]
    raise Terminated(number)


def raise_swallowed() -> None:
    """What was raised for a signal and did not arrive is raised again: a device's code swallowed it, a bare `except`, a
    finalizer, a callback of a compiler.

    Raises:
        Terminated: there was a signal.
    """
    if _raised:
        raise Terminated(_raised.pop())


def arrived() -> None:
    """What was raised for a signal is on its way through: nobody swallowed it."""
    _raised.clear()


def from_outside(error: KeyboardInterrupt) -> bool:
    """Whether a signal raised it, as far as can be told: ours raises a class of its own, Python's handler does not."""
    ours = signal.getsignal(signal.SIGINT) in (interrupting, signal.SIG_IGN)
    return isinstance(error, Terminated) or not ours


def by_signal(number: int) -> str:
    """The signal that ended a process, and what that means."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number not in OUTSIDE:
        return name
    return f"{name} ({'out of memory, or ' if name == 'SIGKILL' else ''}ended from outside)"
