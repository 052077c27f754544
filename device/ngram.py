"""Prompt lookup on the host: drafts are what followed the text's last tokens before. No weights, no cache."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from parity.device.drafter_config import NGramConfig
from parity.device.engines import AnyEngine
from parity.device.recorder import Recorder
from parity.device.sampler import Sampler


class NGram:
    """The longest n-gram at its earliest place, and up to K tokens behind it."""

    family = "n-gram"
    state = ("caches", "length")
    ahead = 0
    sampler: Sampler | None = None

    def __init__(self, config: NGramConfig) -> None:
        self.config = config
        self.caches: list[Any] = []
        self.length = 0

    def lane(self, engine: AnyEngine) -> NGram:
        """The same look-up for another sequence."""
        return copy(self)

    def due(self, text: np.ndarray, emitted: np.ndarray) -> np.ndarray:
        """All tokens so far [S]."""
        return text

    def prefill(self, taps: Any, ids: np.ndarray, width: int, record: Recorder) -> None:
        """Nothing."""

    def draft(self, taps: Any, first: int, committed: np.ndarray, k: int, record: Recorder) -> np.ndarray:
        """0 to K target ids behind all tokens [S], int64."""
        return record.exact("drafter", "draft_tokens", self.following(committed, k))

    def following(self, text: np.ndarray, k: int) -> np.ndarray:
        """Up to K tokens behind the place of the last ones."""
        for size in range(min(self.config.longest, len(text) - 1), self.config.shortest - 1, -1):
            place = self.place(text, size)
            if place is not None:
                return text[place + size : place + size + k]
        return text[:0]

    def place(self, text: np.ndarray, size: int) -> int | None:
        """Where the last `size` tokens stood first, before the end; None where they did not."""
        windows = sliding_window_view(text, size)
        found = np.flatnonzero((windows[:-1] == windows[-1]).all(axis=1))
        return int(found[0]) if len(found) else None

    def kept(self, before: int, drafts: np.ndarray, emitted: np.ndarray) -> int:
        """No rows."""
        return 0

    def clear(self) -> None:
        """No rows."""
        self.length = 0

    def off_load(self) -> int:
        """Its length."""
        return self.length

    def load(self, saved: int) -> None:
        """Put back what `off_load` gave."""
        self.length = saved

    def rollback(self, length: int) -> None:
        """So many rows, of nothing."""
        self.length = length

    def poison(self, value: float) -> None:
        """Nothing."""

    def record(self, record: Recorder) -> bool:
        """Nothing."""
        return False
