"""Several runs of the references that share each visit of the weights: one runs at a time, each up to its next weight.

A run that asks for a weight waits until every other one waits too. Then the weight that the hindmost needs is read
once, and all that wait for it go on, one after the other. The hindmost is the one whose weight was read the shortest
time ago: somebody else is ahead of it. What a run computes is what it computes alone, bit for bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread, current_thread
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Where a run waits: for a weight, and for which expert of a layer (`layer` is the weight where there is none)."""

    weight: Hashable
    layer: Hashable
    expert: int


class Company:
    """Runs in threads of which one is awake."""

    def __init__(self) -> None:
        self._turn = Condition()
        self._members: set[Thread] = set()
        self._waits: dict[Thread, Place] = {}
        self._awake: Thread | None = None
        self._clock = 0
        self._when: dict[Hashable, int] = {}
        self._failed: list[BaseException] = []

    def together(self, runs: Sequence[Callable[[], T]]) -> list[T]:
        """What each run returns, in their order.

        Raises:
            whatever the first run raises that fails; it ends the others.
        """
        results: dict[int, T] = {}
        self._failed.clear()

        def follow(number: int, run: Callable[[], T]) -> None:
            try:
                self.wait("")
                results[number] = run()
            except BaseException as error:
                self._failed.append(error)
            finally:
                self._leave()

        _share_the_heap()
        threads = [Thread(target=follow, args=one, daemon=True) for one in enumerate(runs)]
        self._members = set(threads)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed:
            raise self._failed[0]
        return [results[number] for number in range(len(runs))]

    def wait(self, weight: Hashable, layer: Hashable = None, expert: int = 0) -> None:
        """Wait for this run's turn to use a weight; one of experts says of which layer, and its number."""
        me = current_thread()
        if me not in self._members:
            return
        with self._turn:
            self._waits[me] = Place(weight, layer or weight, expert)
            self._awake = None
            self._wake()
            self._turn.wait_for(lambda: self._awake is me)
            if self._failed:
                raise RuntimeError("another run of the company failed")

    def _leave(self) -> None:
        with self._turn:
            self._members.remove(current_thread())
            self._awake = None
            self._wake()

    def _wake(self) -> None:
        """Wake one, where all that are left wait: one that needs what was read last, or else the hindmost."""
        if self._awake is not None or not self._waits or len(self._waits) < len(self._members):
            return
        self._awake = max(self._waits, key=lambda thread: self._behind(self._waits[thread]))
        place = self._waits.pop(self._awake)
        self._clock += 1
        self._when |= {place.weight: self._clock, place.layer: self._clock}
        self._turn.notify_all()

    def _behind(self, place: Place) -> tuple[int, int, int]:
        """The larger, the further behind."""
        when = self._when.get(place.weight, 0)
        if when and when == self._clock:
            return self._clock + 1, 0, 0  # what was read last is read no second time
        return self._when.get(place.layer, 0), -place.expert, when


M_ARENA_MAX = -8
"""As in the GNU C library's malloc.h."""


def _share_the_heap() -> None:
    """One heap for all threads, where the C library is GNU's: one is awake at a time, and a heap of each would keep
    what it has freed (at real width twice the memory)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
