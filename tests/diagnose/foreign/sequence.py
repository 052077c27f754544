"""What a verb changes, and how it puts that back when it breaks off."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps

import numpy as np


@dataclass
class Sequence:
    """What a verb changes beside the caches.

    Args:
        budget: new tokens at most.
        emitted: ids so far.
        length: rows of the target's cache.
        draft_length: rows of the drafter's cache.
        owed: taps [C, TH] of the emitted tokens that the drafter has not been fed.
        fed: committed rows that the drafter ran in this round; they count from `commit` on, so that a round that
            broke off can start anew.
    """

    budget: int = 0
    emitted: list[int] = field(default_factory=list)
    length: int = 0
    draft_length: int = 0
    owed: np.ndarray | None = None
    fed: int = 0


def whole(verb: Callable) -> Callable:
    """A verb that raises puts back what it found."""

    @wraps(verb)
    def run(self, *arguments):
        models = self.target, self.drafter
        kept = copy.deepcopy(self.at), [m.cache.copy() for m in models], self.target.streams, self.target.middles
        try:
            return verb(self, *arguments)
        except BaseException:
            self.at, (self.target.cache, self.drafter.cache), self.target.streams, self.target.middles = kept
            raise

    return run
