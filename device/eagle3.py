"""EAGLE-3 on an engine: one fusion layer, run K times in a chain (arXiv 2503.01840)."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.drafter import Drafter
from parity.device.drafter_config import Eagle3Config
from parity.device.kernels import rows as kernel_rows
from parity.device.kernels.drafter_layer import project
from parity.device.kernels.norm import llama_norm
from parity.device.recorder import Recorder


class Eagle3(Drafter):
    """C committed rows, then K - 1 chain rows, each a pass alone.

    A chain row pairs the draft before it with the residual stream that the row before it left, one position further
    on. `norm_output` alone decides whether it is normed.
    """

    config: Eagle3Config
    family = "eagle-3"

    def prefill(self, taps: Any, ids: np.ndarray, width: int, record: Recorder) -> None:
        """No chain rows."""
        self.forward(taps, 0, ids, 0, width, record)

    def draft(self, taps: Any, first: int, committed: np.ndarray, k: int, record: Recorder) -> np.ndarray:
        """K passes; the first one is K + 1 rows wide."""
        rows = len(committed)
        total = rows + k - 1
        x = self.forward(taps, first, committed, k - 1, k + 1, record)
        drafts = [self.choose(x, rows, 1, record.part(0, k))]
        for step in range(1, k):
            x = self.extend(drafts[-1], self.recycled(x, rows), total - k + step, total, record)
            rows = 1
            drafts.append(self.choose(x, rows, 1, record.part(step, k)))
        return np.concatenate(drafts)

    def forward(self, taps: Any, first: int, committed: np.ndarray, chained: int, width: int, record: Recorder) -> Any:
        """Committed rows from the cache's end on, padded to `width`.

        Args:
            taps, first, committed: as for `draft`.
            chained: how many chain rows the round has behind them.

        Returns:
            the residual stream that leaves the layer [1, width, H].
        """
        count = len(committed)
        taps = self.shown_taps(taps, first, count, width, record)
        return self._pass(committed, project(self.normed(taps), self.outer["fc"]), 0, count + chained, record)

    def extend(self, draft: np.ndarray, hidden: Any, done: int, total: int, record: Recorder) -> Any:
        """One chain row, behind `done` of this round's `total` rows: the residual stream [1, 1, H]."""
        return self._pass(draft, hidden, done, total, record)

    def recycled(self, x: Any, row: int) -> Any:
        """What the next chain row takes for a hidden [1, 1, H]: the stream of the last of `row` rows, normed or not."""
        last = kernel_rows.window(x, self.engine.array(np.array([row - 1])), 1)
        return llama_norm(last, self.outer["norm"], self.config.eps) if self.config.norm_output else last

    def layout(self, ids: np.ndarray, others: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, shifted by one against their positions, behind `others` rows of the same round; slots are positions."""
        positions = self.length + others + np.arange(len(ids))
        return ids, positions, positions.copy()

    def _pass(self, ids: np.ndarray, hidden: Any, done: int, total: int, record: Recorder) -> Any:
        record = record.part(done, total)
        rows = self.rows(ids, done, hidden.shape[1], record)
        tap = record.bind(self.side, rows.count)
        return self._layers(rows, tap("fc_out", hidden), tap)
