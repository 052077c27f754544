"""A device's process as parity sees it: asked, watched, and ended where it hangs, takes too much memory or talks
nonsense."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from parity.endings import by_signal
from parity.errors import DeviceEnded, DeviceFailed, Inconclusive, NotOffered, ParityError, UsageError
from parity.isolation import memory
from parity.isolation.wire import Malformed, packed, unpacked
from parity.raised import as_parity_error, is_own

TIME = 3600.0
"""Seconds of a verb, taps left out: the first pass over a large model waits for its compiler, tens of minutes."""

SHARE = 0.9
"""Of the machine's memory, for a device alone: the rest is for the golden and the comparison."""

POLL = 0.1
"""Seconds between two looks at its memory."""

CLASSES = {error.__name__: error for error in (NotOffered, Inconclusive, UsageError)}


@dataclass(frozen=True)
class ProcessLimits:
    """What a device may take in a process of its own: seconds a call, and bytes of memory, with what that process
    starts.

    Files that are mapped from a disk are left out.
    """

    time: float = TIME
    memory: int | None = None

    @property
    def bytes(self) -> int:
        """The memory limit, or the default."""
        return self.memory or int(SHARE * memory.of_machine())


class DeviceProcess:
    """One process, started when it is first asked, and anew when it has ended.

    Args:
        name: as given to `--device`.
        limits: of every call.
        opened: said to a new process before anything else.

    Attributes:
        generation: how many were started.
    """

    def __init__(self, name: str, limits: ProcessLimits, opened: dict[str, Any]):
        self.name, self.limits, self.opened = name, limits, opened
        self.generation = 0
        self.dropped: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether there is one; it may have ended unseen."""
        return self._process is not None

    def start(self) -> None:
        """See that there is one, its module imported."""
        if self._process is None:
            self._begin()
            self.rotates = self._exchange("its import", {"do": "open", **self.opened}, None)

    def ask(self, call: str, asked: dict[str, Any], tap: Callable[..., Any] | None = None) -> Any:
        """One call; its result.

        Raises:
            DeviceFailed: it raised.
            DeviceEnded: it ended, or was ended for its time, its memory or what it said.
        """
        self.start()
        return self._exchange(call, asked, tap)

    @property
    def peak_memory(self) -> int:
        """The most bytes that it has had resident so far; 0 where that cannot be told."""
        return memory.peak_of(self._live().pid)

    def end(self) -> None:
        """End it with all that it started."""
        if self._process is not None:
            self._finalizer()
            self._process = None

    def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        path = [os.path.abspath(place) for place in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from parity.isolation.served import main; main({theirs.fileno()})"
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # the stubs leave it out
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a device prints is no result
                start_new_session=True,
            )
        ours.setblocking(False)
        self._socket, self.generation, self.dropped, self._looked = ours, self.generation + 1, [], 0.0
        self._finalizer = weakref.finalize(self, _end, self._process, _watcher(self._process.pid), ours)

    def _exchange(self, call: str, asked: dict[str, Any], tap: Callable[..., Any] | None) -> Any:
        clock = _Clock(self.limits.time)
        dropped, self.dropped = self.dropped, []
        raised: BaseException | None = None
        try:
            self._send(call, asked | {"dropped": dropped}, clock)
            while True:
                answer = unpacked(lambda buffer: self._fill(buffer, call, clock))
                if answer["is"] != "tap":
                    break
                with clock.stopped():
                    reply, raised = _tapped(tap, answer, raised)
                self._send(call, reply, clock)
            if answer["is"] == "result":
                return answer["result"]
            failure = self._error(call, answer, raised)
        except (Malformed, KeyError, TypeError, AttributeError) as error:
            self.end()
            raise DeviceEnded(self.name, call, f"answered with what is no message ({error})") from error
        except BaseException as error:  # Ctrl-C: the conversation cannot be taken up again
            if not (isinstance(error, ParityError) and self._process is None):
                self.end()
            raise
        raise failure

    def _error(self, call: str, answer: dict[str, Any], raised: BaseException | None) -> BaseException:
        kind, said, at = answer["class"], str(answer["said"]), str(answer["at"])
        if kind == "TapRaised" and raised is not None:
            if is_own(raised):
                return raised
            failure = as_parity_error(self.name, call, raised)
            return DeviceFailed(
                self.name, call, failure.said if isinstance(failure, DeviceFailed) else str(failure), at
            )
        if kind in CLASSES:
            return CLASSES[kind](said)
        made = DeviceEnded if kind == "DeviceEnded" else DeviceFailed
        return made(self.name, str(answer["call"]), said, at, bool(answer["refuses"]))

    def _send(self, call: str, said: dict[str, Any], clock: _Clock) -> None:
        for buffer in packed(said):
            left = memoryview(buffer)
            while left:
                try:
                    left = left[self._socket.send(left) :]
                except BlockingIOError:
                    self._wait(call, clock, writing=True)
                except ConnectionError:
                    self._gone(call)

    def _fill(self, buffer: memoryview, call: str, clock: _Clock) -> None:
        while buffer:
            try:
                count = self._socket.recv_into(buffer)
            except BlockingIOError:
                self._wait(call, clock)
                continue
            except ConnectionError:
                count = 0
            if not count:
                self._gone(call)
            buffer = buffer[count:]

    def _wait(self, call: str, clock: _Clock, writing: bool = False) -> None:
        """Until the socket is ready; ends the process where a limit is reached first."""
        ends = ([], [self._socket]) if writing else ([self._socket], [])
        while True:
            ready = any(select.select(*ends, [], min(POLL, clock.left()))[:2])
            self._look(call)
            if ready:
                return
            if clock.left() <= 0:
                self._over(call, f"gave no answer within {clock.limit:g} s and was ended (--time-limit)")

    def _look(self, call: str) -> None:
        """Look at its memory every now and then."""
        if time.monotonic() - self._looked < POLL:
            return
        self._looked, limit = time.monotonic(), self.limits.bytes
        used = memory.of_session(self._live().pid, limit)
        if used > limit:
            self._over(
                call,
                f"took {used / 2**30:.1f} GiB of memory, more than {limit / 2**30:.1f}, and was ended (--memory-limit)",
            )

    def _live(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "nothing is asked of a process before it is started"
        return self._process

    def _over(self, call: str, said: str) -> NoReturn:
        self.end()
        raise DeviceEnded(self.name, call, said)

    def _gone(self, call: str) -> NoReturn:
        """The other end is closed: say how."""
        try:
            code = self._live().wait(5)
        except subprocess.TimeoutExpired:
            self._over(call, "closed its connection and was ended")
        self._over(
            call, f"ended its process by {by_signal(-code)}" if code < 0 else f"ended its process (exit code {code})"
        )


class _Clock:
    """Seconds that a call has left; it stands while a tap computes."""

    def __init__(self, limit: float):
        self.limit, self._end = limit, time.monotonic() + limit

    def left(self) -> float:
        return max(self._end - time.monotonic(), 0.0)

    def stopped(self) -> _Stopped:
        return _Stopped(self)


class _Stopped:
    def __init__(self, clock: _Clock):
        self.clock = clock

    def __enter__(self) -> None:
        self.began = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self.clock._end += time.monotonic() - self.began


def _tapped(
    tap: Any, asked: dict[str, Any], raised: BaseException | None
) -> tuple[dict[str, Any], BaseException | None]:
    """What the tap, with whatever methods it has, makes of a stage, as a reply; what it raised."""
    how, stage, given = asked["how"], str(asked["stage"]), asked["given"]
    try:
        if how == "ranks":
            taken = tap.ranks(stage, given, str(asked["sharding"]))
        elif how == "rows":
            taken = tap.rows(stage, given, int(asked["first"]), int(asked["total"]))
        elif how == "on_round":
            drafts, emitted, tokens = given
            taken = tap.on_round(drafts, emitted, tokens)
            return {"is": "same"}, raised
        else:
            taken = tap(stage, given)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return {"is": "raised"}, error
    if taken is given or (how == "ranks" and all(shard is other for shard, other in zip(taken, given, strict=True))):
        return {"is": "same"}, raised
    return {"is": "taken", "taken": list(taken) if how == "ranks" else taken}, raised


def _watcher(process: int) -> subprocess.Popen[bytes]:
    """Ends a device's process with all that it started once this one is gone, however it went: its end of the pipe
    closes then."""
    return subprocess.Popen(
        ["/bin/sh", "-c", f"read _; kill -9 -{process}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a signal to this one's group leaves it alone
    )


def _end(process: subprocess.Popen[bytes], watcher: subprocess.Popen[bytes], connection: socket.socket) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    connection.close()  # before that it would be an error in what the device is just sending, and its traceback
    watcher.kill()
    watcher.communicate()
