"""Host code of several lanes side by side, which meets at the programs: what all of them reach is one call.

Each lane's code runs in a thread of its own, one at a time, up to its next meeting. So a batch needs no second copy of
the host loop, and lanes may go different ways: those at another call, or at one of other shapes, make their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Together = Callable[[list[Any]], list[Any]]
"""What lanes do together: what each of them brings, to what each of them gets."""


Answer = tuple[Any, BaseException | None]


class Lockstep:
    """Runs jobs so that they meet.

    Attributes:
        calls, shared: what was called so far, and how many of those calls were of several lanes.
    """

    def __init__(self) -> None:
        self.calls = self.shared = 0
        self._jobs: dict[int, _Job] = {}

    def run(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """The results of all jobs, in order.

        Raises:
            BaseException: what the first one that failed raised, once all have come to their end.
        """
        if len(jobs) == 1:
            return [jobs[0]()]
        running = [_Job(job, self._jobs) for job in jobs]
        for job in running:
            job.go_on()
        while waiting := [job for job in running if job.place is not None]:
            self._meet(_largest(waiting))
        for job in running:
            if job.error is not None:
                raise job.error
        return [job.result for job in running]

    def meet(self, place: Hashable, brought: Any, together: Together) -> Any:
        """Wait for the other jobs at this place; what `together` gives this one for what it brought."""
        job = self._jobs.get(threading.get_ident())
        if job is not None:
            return job.wait(place, brought, together)
        self.calls += 1
        return together([brought])[0]

    def _meet(self, group: list[_Job]) -> None:
        self.calls += 1
        self.shared += len(group) > 1
        try:
            given = group[0].together([job.brought for job in group])
        except BaseException as error:
            for job in group:
                job.go_on((None, error))
        else:
            for job, one in zip(group, given, strict=True):
                job.go_on((one, None))


class _Job:
    """One lane's code in its thread; `place` is where it waits, None at its end."""

    together: Together
    brought: Any
    result: Any = None
    error: BaseException | None = None
    place: Hashable | None = None

    def __init__(self, job: Callable[[], Any], jobs: dict[int, _Job]) -> None:
        self._job, self._jobs = job, jobs
        self._turn, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self, answer: Answer = (None, None)) -> None:
        """Run up to the next meeting, or to the end; `answer` is what the last one gave, or its error."""
        self.place, self._answer = None, answer
        self._turn.release()
        self._paused.acquire()

    def wait(self, place: Hashable, brought: Any, together: Together) -> Any:
        """In its thread: pause at a meeting until it is over."""
        self.place, self.brought, self.together = place, brought, together
        self._paused.release()
        self._turn.acquire()
        value, error = self._answer
        if error is not None:
            raise error
        return value

    def _run(self) -> None:
        self._turn.acquire()
        self._jobs[threading.get_ident()] = self
        try:
            self.result = self._job()
        except BaseException as error:
            self.error = error
        finally:
            del self._jobs[threading.get_ident()]
            self._paused.release()


def _largest(waiting: Sequence[_Job]) -> list[_Job]:
    """The jobs at the place where most of them wait, the first such place."""
    groups: dict[Hashable, list[_Job]] = {}
    for job in waiting:
        groups.setdefault(job.place or (), []).append(job)
    return max(groups.values(), key=len)
