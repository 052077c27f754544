"""Ways to end a process, hang or take its memory: what a device may do in a verb, whichever device it is."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

HELD: list[object] = []


def raises(error: BaseException) -> None:
    raise error


def _blow_up() -> None:
    while True:
        HELD.append(bytearray(b"\1") * (64 << 20))


def _worker() -> None:
    """Have another process take half a gibibyte, which it shares with nobody, as shared memory."""
    if os.fork() == 0:
        HELD.extend(mmap.mmap(-1, 64 << 20) for _ in range(8))
        for mapped in HELD:
            mapped.write(b"\1" * (64 << 20))
    time.sleep(60)


WAYS: dict[str, Callable[[], object]] = {
    "exit": lambda: sys.exit(0),
    "os_exit": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "timer": lambda: (threading.Timer(0.1, os._exit, (0,)).start(), time.sleep(60)),
    "hang": lambda: time.sleep(600),
    "memory": _blow_up,
    "worker": _worker,
    "index": lambda: [][1],
}
