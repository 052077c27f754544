"""What is being written: a hidden folder or file beside its place, renamed when it is whole, and gone if it never is.

Its writer holds a lock on it. The kernel lets go of that when the writer dies, however it dies: what no process holds
is a left-over, and whoever writes into the same folder next removes it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from uuid import uuid4

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: left-overs stay, whole dumps are whole all the same
    fcntl = None

LEFT = re.compile(r"\..+\.\d+(-[0-9a-f]{8})?\.partial")
"""The name of something half-written: hidden, with the number of its process."""

SCRATCH = "parity-"

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk, what this user may have of it, or what a file may be."""


def taken(path: Path) -> bool:
    """Whether something has this name already: a link that leads nowhere has it, too."""
    return os.path.lexists(path)


@contextmanager
def partial_folder(out: Path) -> Iterator[Path]:
    """A new folder beside `out` to write into; rename it to `out` when it is whole. What is left of it is removed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    sweep(out.parent)
    folder, held = _held(out, Path.mkdir)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


@contextmanager
def partial_file(out: Path, fresh: bool = False) -> Iterator[Path]:
    """A name beside `out` to write to; it takes the place of `out` at the end, unless something was raised.

    A pipe, and what is open already under its name in /dev (`/dev/stdout`), is written as it is. A link stays one: what
    it points to is replaced.
    """
    if (out.exists() and not out.is_file()) or out.absolute().is_relative_to("/dev"):
        yield out
        return
    out = Path(os.path.realpath(out))  # `resolve` raises where links form a circle
    sweep(out.parent)
    partial, held = _held(out, lambda path: path.touch(exist_ok=False))
    try:
        yield partial
        if fresh:
            os.link(partial, out)
        else:
            if out.exists():
                shutil.copymode(out, partial)
            partial.replace(out)
    except OSError as error:
        if error.filename is None and error.errno in FULL:  # raised by a write, which knows no name
            error.filename = str(out)
        raise
    finally:
        try:
            partial.unlink(missing_ok=True)
        except BaseException:  # a signal that came right here
            partial.unlink(missing_ok=True)
            raise
        finally:
            os.close(held)


def write_whole(out: Path, content: str | bytes) -> None:
    """Write a file whole or not at all; its bytes are on the disk before it is seen under its name."""
    with partial_file(out) as partial, partial.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        try:
            os.fsync(file.fileno())
        except OSError as error:
            if error.errno != errno.EINVAL:  # a pipe has no disk
                raise


@contextmanager
def scratch(what: str) -> Iterator[Path]:
    """A folder for the runs of one command, removed at its end; those of killed commands are removed with it."""
    place = Path(tempfile.gettempdir())
    sweep(place, f".{SCRATCH}")
    folder, held = _held(place / f"{SCRATCH}{what}", Path.mkdir)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def sweep(folder: Path, begins: str = ".") -> None:
    """Remove what dead writers of ours left in a folder; what others own, or use, stays."""
    with suppress(OSError):
        for path in [
            Path(one) for one in os.scandir(folder) if one.name.startswith(begins) and LEFT.fullmatch(one.name)
        ]:
            with suppress(OSError):
                _remove_dead(path)


def _name(name: str) -> str:
    return f".{name}.{os.getpid()}-{uuid4().hex[:8]}.partial"


def _held(out: Path, make: Callable[[Path], object]) -> tuple[Path, int]:
    """A new file or folder, and the open lock on it; once more where it was swept before it was locked."""
    while True:
        partial = out.with_name(_name(out.name))
        try:
            make(partial)
        except OSError as error:
            error.filename = str(out)  # what the user named
            raise
        with suppress(OSError):
            held = os.open(partial, os.O_RDONLY)
            if lock(held) and partial.exists():
                return partial, held
            os.close(held)


def lock(file: int) -> bool:
    """Whether no other process holds an open file, which this one does now; true where a file system has no locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _remove_dead(path: Path) -> None:
    status = path.lstat()
    if (
        fcntl is None
        or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))
        or status.st_uid != os.getuid()
    ):
        return
    held = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe that took its place would be waited for
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by a living writer, or there are no locks: an OSError
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        pass
    finally:
        os.close(held)
