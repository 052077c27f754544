"""A chat template rendered in a process of its own: it comes with a checkpoint, and may loop or grow without end."""

from __future__ import annotations

import multiprocessing
import resource
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from parity.errors import UsageError

SECONDS = 10
"""A template of 200 lines renders in milliseconds."""
MEMORY = 2**28
"""Bytes beyond those of this process."""
LENGTH = 2**24
"""Characters of one prompt: 30 times the longest context met."""


def rendered(render: Callable[[], str], checkpoint: object) -> str:
    """What `render` returns, within a limit of time, memory and length; jinja2's sandbox limits none of them.

    Raises:
        UsageError: it takes more, or the template refuses.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forking beside threads: the child renders text, and runs nothing of theirs
        child = context.Process(target=_render, args=(render, theirs), daemon=True)
        child.start()
    theirs.close()
    try:
        kind, said = ours.recv() if ours.poll(SECONDS) else ("", f"takes more than {SECONDS} seconds")
    except EOFError:
        kind, said = "", "takes too much time or memory"
    finally:
        child.kill()
        child.join()
        ours.close()
    if kind != "text":
        raise UsageError(f"the chat template of {checkpoint} {said}")
    return said


def _render(render: Callable[[], str], to: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    try:
        text = render()
        answer = ("text", text) if len(text) <= LENGTH else ("", f"makes {len(text)} characters")
    except MemoryError:
        answer = "", "takes too much memory"
    except Exception as error:
        answer = "", f"refuses the messages: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    with suppress(BrokenPipeError):
        to.send(answer)
