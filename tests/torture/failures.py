"""Failures planted in a child: an end or a full disk at its n-th change of a file."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.torture.child import WRITES

CHANGES = (
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "os.symlink",
    "shutil.rmtree",
    "shutil.move",
)
GROWS = ("open", "os.mkdir", "os.link", "os.symlink")
"""What a full disk refuses."""


def changes(event: str, arguments: tuple, work: str) -> bool:
    """Whether an audit event changes a file below this folder."""
    if event == "open":
        path, flags = arguments[0], arguments[2] or 0
        return bool(flags & WRITES) and isinstance(path, (str, bytes, os.PathLike)) and _below(path, work)
    return event in CHANGES and isinstance(arguments[0], (str, bytes, os.PathLike)) and _below(arguments[0], work)


def _below(path, work: str) -> bool:
    return os.path.abspath(os.fsdecode(path)).startswith(work)


def at(number: int, work: Path, act: Callable[[str], None]) -> Callable[[], None]:
    """Before each change from the `number`-th on: `act(event)`. To be called in the child."""

    def plant() -> None:
        seen = 0

        def hook(event: str, arguments: tuple) -> None:
            nonlocal seen
            if changes(event, arguments, str(work)):
                seen += 1
                if seen > number:
                    act(event)

        sys.addaudithook(hook)

    return plant


def count(work: Path, told: Path) -> Callable[[], None]:
    """Write a byte to `told` at every change."""
    return at(0, work, lambda event: os.write(handle(told), b"."))


def handle(told: Path, known: dict[Path, int] = {}) -> int:  # noqa: B006 (one a process, opened before the hook sees it)
    """A file outside the watched folder."""
    if told not in known:
        known[told] = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return known[told]


def kill(event: str) -> None:
    """As a machine that goes down."""
    os.kill(os.getpid(), signal.SIGKILL)


def once(sign: int) -> Callable[[str], None]:
    """A signal, the first time."""
    sent = []

    def act(event: str) -> None:
        if not sent:
            sent.append(sign)
            os.kill(os.getpid(), sign)

    return act


def full(event: str) -> None:
    """A full disk: nothing new can be opened or made; what is there can be removed and renamed."""
    if event in GROWS:
        raise OSError(28, os.strerror(28), "a file")


def small_files(size: int) -> Callable[[], None]:
    """No file grows beyond this size, whoever writes it: Python, safetensors, parquet."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def later(seconds: float, sign: int) -> Callable[[], None]:
    """A signal after so long."""

    def plant() -> None:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), sign))
        signal.setitimer(signal.ITIMER_REAL, seconds)

    return plant
