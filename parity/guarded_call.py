"""Every call into a device's code goes through here: what it raises becomes one sentence, and the process stays
ours."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from parity.batching import VERBS
from parity.endings import Terminated, arrived, from_outside, raise_swallowed
from parity.errors import DeviceEnded, DeviceFailed, UsageError
from parity.raised import as_parity_error, by_device, error_text, is_own, raised_at

T = TypeVar("T")


ROUND = VERBS[1:]
"""The verbs of a round; a prefill may be refused, as a prompt that does not fit."""


def call_guarded(device: str, call: str, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call a device's code.

    Its errors of parity are passed on as what they are (`UsageError`, `Inconclusive`, `NotOffered`), Ctrl-C too, which
    is raised once more behind a call that swallowed it (a `KeyboardInterrupt` of the device's own, where it can be told
    from that, ends a process as `SystemExit` does); but in the verbs of a round a device that calls its use wrong has
    failed: parity calls them rightly.
    `sys.stdout`, `sys.stderr`, `sys.exit` and the working directory are afterwards what they were; nothing is gone from
    `sys.path`.

    Raises:
        DeviceFailed: it raised.
        DeviceEnded: it raised what ends a process, or closed standard output.
    """
    kept, path = (sys.stdout, sys.stderr, sys.exit), tuple(sys.path)
    here, process = _folder(), os.getpid()
    try:
        result = function(*arguments, **options)
        raise_swallowed()
        return result
    except KeyboardInterrupt as error:
        if not isinstance(error, Terminated):
            raise_swallowed()
        arrived()
        if from_outside(error):
            raise
        raise as_parity_error(device, call, error) from error
    except BaseException as error:
        raise_swallowed()
        if isinstance(error, UsageError) and call.removesuffix("_batch") in ROUND and by_device(error):
            raise DeviceFailed(device, call, f"UsageError: {error_text(error)}", raised_at(error), True) from error
        if is_own(error):
            raise
        raise as_parity_error(device, call, error) from error
    finally:
        if os.getpid() != process:
            os._exit(1)  # a child that the device forked: the verdict is its parent's
        sys.stdout, sys.stderr, sys.exit = kept
        if here and _folder() != here:
            os.chdir(here)  # golden and run may be named from there
        if lost := [place for place in path if place not in sys.path]:
            sys.path = [*sys.path, *lost]
        if getattr(sys.stdout, "closed", False):
            raise DeviceEnded(device, call, "closed standard output")


def _folder() -> str:
    """The working directory; '' where it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def watch_threads() -> None:
    """From now on an exception that ends a thread is told in one line, unless somebody else looks after them."""
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _thread_raised


def _thread_raised(ended: threading.ExceptHookArgs) -> None:
    from parity.plain import echo

    error = ended.exc_value or ended.exc_type()
    at = raised_at(error)
    echo(f"parity: a thread of the device raised {error_text(error)}" + (f" ({at})" if at else ""), err=True)
