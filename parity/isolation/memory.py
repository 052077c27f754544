"""Memory: the machine's, and what the processes of a device take of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def of_machine() -> int:
    """Bytes of this machine, or of the control group that this process is in."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def of_session(session: int, enough: int) -> int:
    """Bytes of the processes of a session: their own and shared memory, files on a disk left out; 0 where that cannot
    be told.

    Args:
        enough: up to here the sum over the processes will do. Beyond it a page that several of them hold, as forked
            ones do, counts once; asking for that takes the kernel longer.
    """
    members = list(_members(session))
    total = sum(_resident(process) for process in members)
    return (
        total
        if total <= enough
        else sum(
            _kilobytes(process, "smaps_rollup", "Pss_Anon:", "Pss_Shmem:") or _resident(process) for process in members
        )
    )


def peak_of(process: int) -> int:
    """The most bytes that a process has ever had resident, mapped files among them; 0 where that cannot be told."""
    return _kilobytes(process, "status", "VmHWM:")


def _members(session: int) -> Iterator[int]:
    with suppress(OSError):
        for name in os.listdir("/proc"):
            with suppress(ValueError, OSError):
                if os.getsid(int(name)) == session:
                    yield int(name)


def _resident(process: int) -> int:
    return _kilobytes(process, "status", "RssAnon:", "RssShmem:")


def _kilobytes(process: int, file: str, *wanted: str) -> int:
    """The sum of some lines of a file in /proc, in bytes."""
    with suppress(OSError, ValueError, IndexError):
        lines = (line.split() for line in Path(f"/proc/{process}/{file}").read_text().splitlines())
        return sum(int(line[1]) << 10 for line in lines if line and line[0] in wanted)
    return 0
