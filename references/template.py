"""Chat templates rendered in a process apart: one comes with a checkpoint, and may loop or grow without end."""

from __future__ import annotations

import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from math import ceil
from multiprocessing.connection import Connection

from parity.errors import UsageError

SECONDS = 10
"""A template of 200 lines renders in milliseconds."""
MEMORY = 2**28
"""Bytes beyond those of this process."""
LENGTH = 2**24
"""Characters of one prompt: 30 times the longest context met."""


def rendered(renders: Sequence[Callable[[], str]], checkpoint: object) -> Generator[str, None, None]:
    """What each of `renders` returns, each within a limit of time, memory and length; jinja2's sandbox limits none.

    One process renders all, no further ahead than its pipe holds.

    Raises:
        UsageError: one takes more, or the template refuses.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forking beside threads: the child renders text, and runs nothing of theirs
        child = context.Process(target=_render, args=(renders, theirs), daemon=True)
        child.start()
    theirs.close()
    try:
        for _ in renders:
            yield _received(ours, checkpoint)
    finally:
        child.kill()
        child.join()
        ours.close()


def _received(ours: Connection, checkpoint: object) -> str:
    try:
        kind, said = ours.recv() if ours.poll(SECONDS) else ("", f"takes more than {SECONDS} seconds")
    except EOFError:
        kind, said = "", "takes too much time or memory"
    if kind != "text":
        raise UsageError(f"the chat template of {checkpoint} {said}")
    return str(said)


def _render(renders: Sequence[Callable[[], str]], to: Connection) -> None:
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    with suppress(BrokenPipeError):
        for render in renders:
            until = ceil(time.process_time()) + SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (until if most < 0 else min(until, most), most))
            to.send(_answer(render))


def _answer(render: Callable[[], str]) -> tuple[str, str]:
    try:
        text = render()
    except MemoryError:
        return "", "takes too much memory"
    except Exception as error:
        return "", f"refuses the messages: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ("text", text) if len(text) <= LENGTH else ("", f"makes {len(text)} characters")
