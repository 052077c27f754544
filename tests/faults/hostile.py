"""Devices that end the process, hang, crash or lie about what they are; each option says how and where."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import click

import device
from device.pipeline import Pipeline

HELD: list[object] = []


class Quiet(BaseException):
    """What `except Exception` does not see."""


def _raise(error: BaseException) -> None:
    raise error


def _blow_up() -> None:
    while True:
        HELD.append(bytearray(b"\1") * (64 << 20))


WAYS: dict[str, Callable[[], object]] = {
    "exit": lambda: sys.exit(0),
    "click": lambda: _raise(click.exceptions.Exit(0)),
    "abort": lambda: _raise(click.exceptions.Abort()),
    "base": lambda: _raise(Quiet("gone")),
    "generator": lambda: _raise(GeneratorExit()),
    "os_exit": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "timer": lambda: (threading.Timer(0.1, os._exit, (0,)).start(), time.sleep(60)),
    "hang": lambda: time.sleep(600),
    "memory": _blow_up,
    "index": lambda: [][1],
    "thread": lambda: threading.Thread(target=time.sleep, args=(600,)).start(),
    "atexit": lambda: atexit.register(os._exit, 0),
    "no_exit": lambda: setattr(sys, "exit", lambda code=0: None),
    "stdout": lambda: setattr(sys, "stdout", open(os.devnull, "w")),  # noqa: SIM115
    "closed": lambda: sys.stdout.close(),
}


def ends(way: str, where: str = "draft", **options) -> Pipeline:
    """A device that does this in its factory or in a verb."""
    if where == "factory":
        WAYS[way]()
    built = device.load(**options)
    if where != "factory":
        verb = getattr(built, where)
        setattr(built, where, lambda *arguments: (WAYS[way](), verb(*arguments))[1])
    return built


def always_bfloat16(**options) -> Pipeline:
    """A device that does not look at the precision it is asked for."""
    return device.load(**options | {"precision": "bfloat16"})


def says_float32(**options) -> Pipeline:
    """A device that computes in bfloat16 and says float32."""
    built = device.load(**options | {"precision": "bfloat16"})
    says = replace(built.describe(), precision="float32")
    built.describe = lambda: says
    return built


def fixed_k(k: int, **options) -> Pipeline:
    """A device that drafts another number than it is asked for."""
    return device.load(k=2, **options)
