"""Somebody else's loop, run as it is: in a thread that moves only while the driver waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class Abandoned(BaseException):
    """Ends a loop that nobody will continue."""


class HostLoop:
    """A loop that stops where it says so, and continues with what the driver gives it."""

    def __init__(self, main: Callable[[], None]) -> None:
        self._main = main
        self._places: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self, place: str, value: Any = None) -> Any:
        """In the loop: stop at a place with a value; what the driver answers is what it continues with."""
        self._places.put((place, value))
        return self._next()

    def go(self, answer: Any, *places: str) -> Any:
        """In the driver: continue up to one of these places; the value the loop has there.

        Raises:
            RuntimeError: it stopped elsewhere.
        """
        self._answers.put(answer)
        place, value = self._places.get()
        if place == "failed":
            raise value
        if place not in places:
            raise RuntimeError(f"the loop is at {place!r}, not at {' or '.join(places)}")
        return value

    def abandon(self) -> None:
        self._answers.put(Abandoned())

    def _next(self) -> Any:
        answer = self._answers.get()
        if isinstance(answer, Abandoned):
            raise answer
        return answer

    def _run(self) -> None:
        try:
            self._next()
            self._main()
            self._places.put(("end", None))
        except Abandoned:
            pass
        except BaseException as error:
            self._places.put(("failed", error))
