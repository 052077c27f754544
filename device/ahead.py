"""When a round is sent, and what its host knows of the length by then: the same for a loop that waits and one that
does not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Standing:
    """What the host knows of B sequences: rows of the target's caches, and tokens that may still come out."""

    lengths: tuple[int, ...]
    left: tuple[int, ...]

    def behind(self, emitted: Sequence[int], over: Sequence[bool]) -> Standing:
        """Once a round has emitted so many tokens, and these sequences are over."""
        lengths = tuple(length + more for length, more in zip(self.lengths, emitted, strict=True))
        left = (0 if end else each - more for each, more, end in zip(self.left, emitted, over, strict=True))
        return Standing(lengths, tuple(left))


def rounds_ahead(standing: Standing, k: int, chunk: int, read: Callable[[Standing, int], Standing]) -> Iterator[int]:
    """Rows that the cache has behind each round at the most, in the order in which rounds are sent.

    Two chunks are in flight at the most: the second is sent before the first is read. A round is sent ahead of what
    is read only where the budget is sure to need it, whatever is accepted: so an end token alone makes rounds run past
    the end, and all of a sequence's last ones are waited for.

    Args:
        k: K, drafts of a round.
        chunk: rounds that are read together.
        read: waits for so many rounds, the oldest in flight; where the sequences stand behind them.
    """
    most = max(length + left for length, left in zip(standing.lengths, standing.left, strict=True)) + k
    flying: deque[int] = deque()
    while True:
        flight = sum(flying)
        needed = -(-max(standing.left) // (k + 1)) - flight
        if needed > 0 and len(flying) < 2:
            count = min(chunk, needed)
            for number in range(flight + 1, flight + count + 1):
                yield min(max(standing.lengths) + (number) * (k + 1), most)
            flying.append(count)
        elif flying:
            standing = read(standing, flying.popleft())
        else:
            return
