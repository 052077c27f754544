"""The time that a search for causes may take, and what it is asking meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from time import monotonic

from parity.progress import Progress, quiet

TRYING = 0.8
"""Share of the limit for trying; the rest is for confirming what fits best so far."""

READING = 0.95
"""Share of the limit until which the parts of what stays unexplained are read, or what it costs is begun: one step may
take seconds."""

SHORT, CONFIRMING, LEAST = 0.3, 0.5, 0.2
"""The same where the part that is wrong is known, and only its name is missing; until when one is confirmed; and what
each of that has at the least, however long it took to find the part."""


def now() -> float:
    """The second it is, as `monotonic` counts: looked up here, for a benchmark counts other seconds."""
    return monotonic()


class TimeIsUp(Exception):
    """The limit is reached before the next counterfactual run."""


@dataclass
class SearchClock:
    """Counts from its making; it is asked before each counterfactual run, none is interrupted.

    Args:
        limit: seconds, None for no limit.
        progress: is told what is being asked.

    Attributes:
        begun: the second from which on it counts.
        untried: what the limit left out, in sentences; empty where the search came to its end.
    """

    limit: float | None = None
    progress: Progress = quiet
    untried: list[str] = field(default_factory=list)
    _share: float = 1.0
    begun: float = field(default_factory=now)

    def check(self) -> None:
        """Raises TimeIsUp."""
        if self.limit is not None and now() - self.begun >= self._share * self.limit:
            raise TimeIsUp

    def trying(self, share: float = TRYING) -> AbstractContextManager[None]:
        """Inside, the time left for confirming is not used: no more than this share of the limit is, or `LEAST`."""
        spent = (now() - self.begun) / self.limit if self.limit else 0.0
        return self.until(min(TRYING, max(share, spent + LEAST)))

    @contextmanager
    def until(self, share: float) -> Iterator[None]:
        """Inside, the time is up at this share of the limit."""
        before, self._share = self._share, share
        try:
            yield
        finally:
            self._share = before
