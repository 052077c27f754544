"""What a device can do instead of its work, by name; `load` is the factory of a device that does it somewhere."""

from __future__ import annotations

import _thread
import atexit
import ctypes
import gc
import os
import resource
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable

import click
import numpy as np

from tests.torture.replay import Replay

WHERE = ("factory", "describe", "prefill", "draft", "verify", "commit", "end")
NASTY = "\x1b[2J\x1b]0;owned\x07[/x][bold]\u202e\r\n\n" + "long " * 50_000


class Endless(Exception):
    """An exception that cannot be printed."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


def _raises(error: Callable[[], BaseException]) -> Callable:
    def do(value):
        raise error()

    return do


def _first(*calls: Callable[[], object]) -> Callable:
    """Do something, then go on as if nothing was."""

    def do(value):
        for call in calls:
            call()
        return value

    return do


def _thread_of(work: Callable[[], object], daemon: bool) -> Callable[[], None]:
    return lambda: threading.Thread(target=work, daemon=daemon).start()


def _memory() -> None:
    kept = []
    while True:
        kept.append(np.ones(2**25))


def _group() -> BaseException:
    return BaseExceptionGroup("many", [SystemExit(0)])


def _circular() -> BaseException:
    one, other = ValueError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def _patch(module: str, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(sys.modules.get(module) or __import__(module, fromlist=["x"]), name, value)


BROKEN: dict[str, Callable] = {
    **{
        f"raises {error.__name__}": _raises(error)
        for error in (
            ValueError,
            IndexError,
            KeyError,
            MemoryError,
            RecursionError,
            AssertionError,
            NotImplementedError,
            StopIteration,
            StopAsyncIteration,
            SystemExit,
            KeyboardInterrupt,
            GeneratorExit,
            BaseException,
            BrokenPipeError,
            EOFError,
            Warning,
            click.Abort,
            Endless,
            UnicodeError,
            ImportError,
            TimeoutError,
            FloatingPointError,
            SyntaxError,
        )
    },
    "raises SystemExit 0": _raises(lambda: SystemExit(0)),
    "raises SystemExit text": _raises(lambda: SystemExit("done")),
    "raises click Exit 0": _raises(lambda: click.exceptions.Exit(0)),
    "raises ClickException": _raises(lambda: click.ClickException("no")),
    "raises UsageError of click": _raises(lambda: click.UsageError("no")),
    "raises nasty words": _raises(lambda: RuntimeError(NASTY)),
    "raises no space left": _raises(lambda: OSError(28, "No space left on device", "/x")),
    "raises a group": _raises(_group),
    "raises in a circle": _raises(_circular),
    "exits 0": lambda value: os._exit(0),
    "exits 1": lambda value: os._exit(1),
    "becomes true": lambda value: os.execv("/bin/true", ["true"]),
    "aborts": lambda value: os.abort(),
    "segfaults": lambda value: ctypes.string_at(0),
    "kills itself": lambda value: os.kill(os.getpid(), signal.SIGKILL),
    "ends itself": lambda value: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(5)),
    "interrupts itself": lambda value: (os.kill(os.getpid(), signal.SIGINT), time.sleep(5)),
    "alarms itself": lambda value: (signal.alarm(1), time.sleep(5)),
    "pipe signal": lambda value: (signal.signal(signal.SIGPIPE, signal.SIG_DFL), os.kill(os.getpid(), signal.SIGPIPE)),
    "interrupts main": lambda value: (_thread.interrupt_main(), time.sleep(5)),
    "timer exits 0": lambda value: (threading.Timer(0.1, os._exit, [0]).start(), time.sleep(5)),
    "recurses": lambda value: (lambda f: f(f))(lambda f: f(f)),
    "returns None": lambda value: None,
    "returns text": lambda value: "\x1b[31m[/x]",
    "returns an object": lambda value: object(),
    "returns objects": lambda value: np.array([object()] * 4),
    "returns NaN": lambda value: np.full(4, np.nan),
    "returns a huge shape": lambda value: np.broadcast_to(np.int64(1), 2**40),
    "returns 70 dimensions": lambda value: [[[[]]]],
    "returns complex": lambda value: np.ones(3, complex),
    "returns a scalar": lambda value: np.float32(3.5),
    "returns a generator": lambda value: (one for one in ()),
    "takes memory": lambda value: _memory(),
    "few files": _first(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))),
    "no file size": _first(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))),
}
"""No verdict of these can be a pass (what a verb returns counts where something is made of it: see `devices`)."""

HARMLESS: dict[str, Callable] = {
    "prints": _first(lambda: print("loading [/x] [red]weights")),
    "thread that stays": _first(_thread_of(lambda: time.sleep(3600), daemon=False)),
    "daemon thread": _first(_thread_of(lambda: time.sleep(3600), daemon=True)),
    "thread that raises": _first(_thread_of(lambda: 1 / 0, daemon=False)),
    "child that stays": _first(lambda: os.fork() or (time.sleep(30), os._exit(0))),
    "collector off": _first(gc.disable),
    "low recursion": _first(lambda: sys.setrecursionlimit(120)),
    "NumPy raises": _first(lambda: np.seterr(all="raise")),
    "warnings are errors": _first(lambda: warnings.simplefilter("error")),
    "random seed": _first(lambda: np.random.seed(0)),
    "another umask": _first(lambda: os.umask(0o777)),
    "environment gone": _first(os.environ.clear),
    "ignores signals": _first(lambda: [signal.signal(one, signal.SIG_IGN) for one in (signal.SIGTERM, signal.SIGINT)]),
    "another folder": _first(lambda: os.chdir("/")),
    "no path": _first(sys.path.clear),
    "trace function": _first(lambda: sys.settrace(lambda *a: None)),
}
"""A clean device that does one of these passes."""

HOSTILE: dict[str, Callable] = {
    "prints escapes": _first(lambda: print("\x1b[2J\x1b]0;owned\x07"), lambda: os.write(2, b"\x1b[31m")),
    "closes stdout": _first(lambda: os.close(1)),
    "closes sys.stdout": _first(lambda: sys.stdout.close()),
    "no sys.stdout": _first(lambda: setattr(sys, "stdout", None)),
    "standard error closed": _first(lambda: os.close(2)),
    "atexit exits 0": _first(lambda: atexit.register(os._exit, 0)),
    "thread exits 0 later": _first(_thread_of(lambda: (time.sleep(0.4), os._exit(0)), daemon=True)),
    "verdicts patched": _first(_patch("parity.compare", "conclude", lambda verdicts: "pass")),
    "findings patched": _first(_patch("parity.compare", "check_structure", lambda *a: [])),
    "exit patched": _first(_patch("sys", "exit", lambda code=0: os._exit(0))),
    "digest patched": _first(_patch("parity.golden.shards", "digest", lambda array: "")),
    "home removed": _first(lambda: shutil.rmtree(os.environ.get("PARITY_HOME", "none"), ignore_errors=True)),
}
"""Together with garbage in every tensor: whatever they patch and close, no exit 0. They need a process of their own."""

HANGS: dict[str, Callable] = {
    "sleeps": _first(lambda: time.sleep(3600)),
    "sleeps and ignores signals": _first(HARMLESS["ignores signals"].__get__(0), lambda: time.sleep(3600)),
    "spins": lambda value: next(one for one in iter(int, 1) if one),  # a list would grow: 300 million entries in 8 s
    "deadlocks": lambda value: (lock := threading.Lock(), lock.acquire(), lock.acquire()),
}


def _garbage(stage: str, value: np.ndarray) -> np.ndarray:
    return (
        value if value.dtype.kind in "iu" else (np.random.default_rng(0).normal(0, 25, value.shape)).astype(value.dtype)
    )


def _as(dtype) -> Callable:
    return lambda stage, value: value.astype(dtype)


TAPS: dict[str, Callable[[str, np.ndarray], object]] = {
    "random": _garbage,
    "float64": _as(np.float64),
    "complex": _as(complex),
    "objects": _as(object),
    "text": _as("U4"),
    "no rows": lambda stage, value: value[:0],
    "no axes": lambda stage, value: np.float32(1),
    "one axis more": lambda stage, value: value[None],
    "60 axes": lambda stage, value: value.reshape(value.shape + (1,) * 60),
    "None": lambda stage, value: None,
    "a list": lambda stage, value: value.tolist(),
    "Inf": lambda stage, value: value if value.dtype.kind in "iu" else np.full_like(value, np.inf),
    "zeros": lambda stage, value: np.zeros_like(value),
    "swapped bytes": lambda stage, value: value.astype(">f4") if value.dtype.kind not in "iu" else value.astype(">i8"),
    "masked": lambda stage, value: np.ma.masked_all_like(value.astype(np.float32)),
    "reversed": lambda stage, value: value[::-1] * 2,
    "huge": lambda stage, value: np.broadcast_to(value[:1], (2**36, *value.shape[1:])),
}
"""What is handed to the tap in a stage's place."""


def _named(name: object) -> Callable:
    return lambda device, tap: lambda stage, value: tap(name, value)


def _twice(device, tap):
    return lambda stage, value: (tap(stage, value), tap(stage, value))


def _changed_later(device, tap):
    """One buffer of each stage, written over once it was handed over; and what came back is written over too."""

    def hand(stage, value):
        back = tap(stage, value)
        value[...] = 0
        if isinstance(back, np.ndarray) and back.flags.writeable:
            back[...] = 0

    return hand


def _from_a_thread(device, tap):
    def hand(stage, value):
        thread = threading.Thread(target=lambda: tap(stage, value if value.dtype.kind in "iu" else value * 3))
        thread.start()
        thread.join()

    return hand


def _some(device, tap):
    return lambda stage, value: tap(stage, value) if "layers.1" not in stage else None


WRAPS: dict[str, Callable] = {
    "an unknown stage": _named("target.nothing"),
    "a nasty stage": _named("\x1b[31m[/x]"),
    "an unhashable stage": _named([]),
    "no stage": _named(None),
    "each twice": _twice,
    "some not at all": _some,
    "from a thread": _from_a_thread,
    "nothing": lambda device, tap: lambda stage, value: None,
    "changed later": _changed_later,
}
"""How the tap is called."""
CLEAN_WRAPS = ("changed later",)
"""Those that are a device's right."""

KINDS = {"broken": BROKEN, "harmless": HARMLESS, "hostile": HOSTILE, "hangs": HANGS, "taps": TAPS, "wraps": WRAPS}


def load(target, drafter, k, precision, kind: str, what: int, where: str = "prefill", **options):
    """A replaying device that does `what` (a number in its kind) at `where`."""
    do = list(KINDS[kind].values())[what]
    if kind == "taps":
        device = Replay()
        device.wrap = lambda self, tap: lambda stage, value: tap(stage, do(stage, value))
        return device
    if kind == "wraps":
        device = Replay()
        device.wrap = do
        return device

    def meddle(device, verb, value):
        last = device.prompt == len(device.run.manifest.case.prompts) - 1
        now = verb == where or (where == "end" and verb == "commit" and last)
        return do(value) if now else value

    device = Replay(meddle)
    if where == "factory":
        do(None)  # behind the replay, which asks the environment where its run is
    if kind == "hostile":
        device.wrap = lambda self, tap: lambda stage, value: tap(stage, _garbage(stage, value))
    return device
