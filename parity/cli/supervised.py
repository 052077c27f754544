"""The command line runs in a child: however a device ends that one, this process says so and never exits 0 for it."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from parity.endings import ENDING, Terminated, by_signal, interrupting

GRACE = 2.0
"""Seconds that a device's threads and exit handlers have once the result is out: enough to flush, no time to wait."""

PATIENCE = 20.0
"""Seconds from SIGTERM or SIGHUP to SIGKILL: removing a half-written dump takes less, who starts us waits 30 s."""

AGAIN = 1.0
"""Seconds after which a second signal is a second wish: a terminal sends Ctrl-C to both, and the parent passes it."""

ISOLATING = ("gate", "nightly")
"""Commands that run a device in a process of its own unless they are told not to."""


def supervise(command: Callable[[], int]) -> None:
    """Run the command in a child and exit with its code, 3 where it ended without one.

    Call it while this process has one thread and nothing heavy is imported.
    """
    if not hasattr(os, "fork"):
        raise SystemExit(command())
    _no_closed_descriptor()
    reader, writer = os.pipe()
    token, parent = os.urandom(8), os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until each of the two has its own handlers
    child = os.fork()
    if child == 0:
        os.close(reader)
        _end_with(parent)
        _unwind_on_signals()
        code = _interruptible(command)
        os.write(writer, token + bytes([code]))
        os.close(writer)
        gc.freeze()  # what is alive now goes with the process: to walk it once more takes 3 % of a small diff
        raise SystemExit(code)  # threads and exit handlers have until the parent's patience ends
    os.close(writer)
    watch = _Watch(child, reader, token)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    os._exit(watch.code())  # nothing to flush here, and taking the interpreter down takes 10 ms


def _no_closed_descriptor() -> None:
    """A standard stream that is closed would be the next file that is opened, and what is printed would go there."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)


def _end_with(parent: int) -> None:
    """Have the kernel end this process when its parent is gone."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(3)


def _unwind_on_signals() -> None:
    """The first of these signals unwinds the command, which removes what is half-written; more do not disturb that."""

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a job in the background
            signal.signal(number, interrupting)


def _interruptible(command: Callable[[], int]) -> int:
    """The command's code, or that of a signal which came before it began."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        return command()
    except Terminated as ended:
        _write("parity: interrupted; nothing was left half-written\n")
        return 128 + ended.number


class _Watch:
    """The parent: passes signals on, takes the exit code, and says how the child ended where there is none."""

    def __init__(self, child: int, reader: int, token: bytes):
        self.child, self.reader, self.token = child, reader, token
        self.handed, self.asked, self.deadline = b"", (0, 0.0), float("inf")
        os.set_blocking(reader, False)
        self.woken, wake = os.pipe()
        for end in (self.woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._pass_on)
        signal.signal(signal.SIGTSTP, self._pause)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def code(self) -> int:
        """Wait; the exit code of this process."""
        listening = [self.reader, self.woken]
        while (status := self._ended()) is None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                os.kill(self.child, signal.SIGKILL)
            ready, _, _ = select.select(listening, [], [], max(left, 0.1) if left < 1e9 else None)
            if self.woken in ready:
                os.read(self.woken, 4096)
            if self.reader in ready and not self._read():
                listening.remove(self.reader)
        self._read()
        whole = len(self.handed) == len(self.token) + 1 and self.handed.startswith(self.token)
        return self.handed[-1] if whole else self._said(status)

    def _read(self) -> bool:
        """Take what the child handed over; whether there may be more."""
        try:
            data = os.read(self.reader, 64)
        except BlockingIOError:
            return True
        self.handed += data
        if data:
            self.deadline = min(self.deadline, time.monotonic() + GRACE)
        return bool(data)

    def _ended(self) -> int | None:
        """The child's exit code, minus the number of the signal that ended it; None while it runs."""
        ended, status = os.waitpid(self.child, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None

    def _pass_on(self, number: int, frame: object) -> None:
        first, since = self.asked
        if first and time.monotonic() - since > AGAIN:
            self.deadline = 0.0  # asked twice: the device does not let go
        elif not first:
            self.asked = number, time.monotonic()
            os.kill(self.child, number)
            if number != signal.SIGINT:
                self.deadline = min(self.deadline, time.monotonic() + PATIENCE)

    def _pause(self, number: int, frame: object) -> None:
        os.kill(self.child, signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(self.child, signal.SIGCONT)

    def _said(self, status: int) -> int:
        """One sentence on how the child ended without a result, and the exit code."""
        if os.isatty(2):
            _write("\x1b[?25h")  # a progress bar hides the cursor
        asked, _ = self.asked
        if asked and status < 0:
            _write("parity: interrupted; it did not let go and was ended\n")
            return 128 + asked
        how = "the process was ended" + (f" by {by_signal(-status)}" if status < 0 else "")
        how += " before it had a result: by a device"
        if _isolating(sys.argv[1:]):
            how += " that reaches out of the process of its own, or for want of memory"
        else:
            how += ", most likely; `parity gate` and --isolate run one in a process of its own"
        _write(f"parity: {how}\n")
        return 3


def _isolating(arguments: Sequence[str]) -> bool:
    """Whether a command line runs its device in a process of its own."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    return "--isolate" in arguments or (command in ISOLATING and "--no-isolate" not in arguments)


def _write(text: str) -> None:
    with suppress(OSError):
        os.write(2, text.encode())
