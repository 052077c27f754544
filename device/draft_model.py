"""A small draft model on an engine: an ordinary Llama that knows the target's tokens alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.chain import Chain
from parity.device.drafter_config import DraftModelConfig
from parity.device.engines import widest
from parity.device.recorder import Recorder
from parity.device.rows import PROMPT_BUCKET, round_up


class DraftModel(Chain):
    """Each row is a token at its own position; rows of accepted drafts stay in the cache.

    The last draft of a round is never run over: where all were accepted, the next round has two committed rows.
    """

    config: DraftModelConfig
    family = "draft-model"
    ahead = 0

    def due(self, text: np.ndarray, emitted: np.ndarray) -> np.ndarray:
        """The tokens behind its cache's rows."""
        return text[min(self.length, len(text) - 1) :]

    def kept(self, before: int, drafts: np.ndarray, emitted: np.ndarray) -> int:
        """With the last token's row those of the drafts that came out; none of the last emitted token."""
        fed = drafts[:-1]
        came = emitted[: len(fed)]
        agreed = int(np.cumprod(fed[: len(came)] == came).sum())
        return before + min(1 + agreed, len(emitted))

    def width(self, committed: int) -> int:
        """Two rows, but where drafts of another came out or rounds were skipped."""
        return 2 if committed <= 2 else round_up(committed, PROMPT_BUCKET)

    def forward(self, taps: Any, first: int, committed: np.ndarray, chained: int, width: int, record: Recorder) -> Any:
        """Committed rows by their tokens alone."""
        return self._pass(committed, width, 0, len(committed) + chained, record)

    def extend(self, draft: np.ndarray, x: Any, row: int, done: int, total: int, record: Recorder) -> Any:
        """One chain row by its token alone."""
        return self._pass(draft, 1, done, total, record)

    def _pass(self, ids: np.ndarray, width: int, done: int, total: int, record: Recorder) -> Any:
        rows, record = self.placed(ids, widest(self.engine, width), done, total, record)
        return self.run(rows, self.embedded(rows), record.bind(self.side, rows.count))
