"""Devices that end the process, hang, crash or lie about what they are; each option says how and where."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType

import click

from parity import device
from parity.device.pipeline import Pipeline
from parity.endings import Terminated
from tests.faults import ways
from tests.faults.ways import raises


class Quiet(BaseException):
    """What `except Exception` does not see."""


def _in_the_comparison(end: Callable[[], object]) -> None:
    """Have a timer do it once the device is done and parity compares."""

    def ring(number: int, frame: FrameType | None) -> None:
        if any(
            f"{os.sep}parity{os.sep}compare{os.sep}" in one.f_code.co_filename for one, _ in traceback.walk_stack(frame)
        ):
            signal.setitimer(signal.ITIMER_REAL, 0)
            end()

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)


WAYS = ways.WAYS | {
    "click": lambda: raises(click.exceptions.Exit(0)),
    "click_later": lambda: _in_the_comparison(lambda: raises(click.exceptions.Exit(0))),
    "context_later": lambda: _in_the_comparison(lambda: click.get_current_context().exit(0)),
    "exit_later": lambda: _in_the_comparison(lambda: sys.exit(0)),
    "interrupt_later": lambda: _in_the_comparison(lambda: raises(Terminated(-128))),
    "abort": lambda: raises(click.exceptions.Abort()),
    "base": lambda: raises(Quiet("gone")),
    "generator": lambda: raises(GeneratorExit()),
    "thread": lambda: threading.Thread(target=time.sleep, args=(600,)).start(),
    "atexit": lambda: atexit.register(os._exit, 0),
    "no_exit": lambda: setattr(sys, "exit", lambda code=0: None),
    "stdout": lambda: setattr(sys, "stdout", open(os.devnull, "w")),  # noqa: SIM115
    "closed": lambda: sys.stdout.close(),
}


def ends(way: str, where: str = "draft", **options) -> Pipeline:
    """A device that does this, or several things (`thread+atexit`), in its factory or in a verb."""

    def misbehave() -> None:
        for one in way.split("+"):
            WAYS[one]()

    if where == "factory":
        misbehave()
    built = device.load(**options)
    if where != "factory":
        verb = getattr(built, where)
        setattr(built, where, lambda *arguments: (misbehave(), verb(*arguments))[1])
    return built


def always_bfloat16(**options) -> Pipeline:
    """A device that does not look at the precision it is asked for."""
    return device.load(**options | {"precision": "bfloat16"})


def fixed_k(k: int, **options) -> Pipeline:
    """A device that drafts another number than it is asked for."""
    return device.load(k=2, **options)
