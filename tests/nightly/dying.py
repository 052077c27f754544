"""Devices that end, hang or take others along: for what a night has to outlive."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from parity import device


def segfault(**options):
    print("loading the runtime")
    os.kill(os.getpid(), signal.SIGSEGV)


def killed(**options):
    os.kill(os.getpid(), signal.SIGKILL)


def quits(**options):
    os._exit(7)


def leaves(**options):
    raise SystemExit("the driver is too old")


def out_of_memory(**options):
    raise MemoryError("cannot allocate 64 GiB")


def hangs(**options):
    print("waiting for the runtime", flush=True)
    time.sleep(600)


def hangs_unless_told(**options):
    """Waits for good, until the file of $PARITY_TEST_GO is there: then it is the numpy device."""
    if not Path(os.environ["PARITY_TEST_GO"]).exists():
        hangs()
    return device.load(**options)


def kills_its_job(**options):
    """The cell's job, which started this device's process, dies."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def kills_its_worker(**options):
    """What started the cell's job dies."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    os.kill(int(status.partition("PPid:")[2].split()[0]), signal.SIGKILL)
    time.sleep(600)
