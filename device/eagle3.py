"""EAGLE-3 on an engine: one fusion layer, run K times in a chain (arXiv 2503.01840)."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.chain import Chain
from parity.device.drafter import FusedDrafter
from parity.device.drafter_config import Eagle3Config
from parity.device.engines import widest
from parity.device.kernels import rows as kernel_rows
from parity.device.kernels.drafter_layer import project
from parity.device.kernels.norm import llama_norm
from parity.device.recorder import Recorder


class Eagle3(Chain, FusedDrafter):
    """A chain row pairs its token with the residual stream that the row before it left.

    Ids are shifted by one against their positions. `norm_output` alone decides whether the stream is normed.
    """

    config: Eagle3Config
    family = "eagle-3"

    def forward(self, taps: Any, first: int, committed: np.ndarray, chained: int, width: int, record: Recorder) -> Any:
        """Committed rows with their true taps."""
        count, width = len(committed), widest(self.engine, width)
        taps = self.shown_taps(taps, first, count, width, record)
        return self._pass(committed, self.fused(taps, count), 0, count + chained, record)

    def fused(self, taps: Any, committed: int) -> Any:
        """See the parent; every row has taps."""
        return project(self.normed(taps), self.outer["fc"])

    def extend(self, draft: np.ndarray, x: Any, row: int, done: int, total: int, record: Recorder) -> Any:
        """One chain row with a recycled hidden."""
        return self._pass(draft, self.recycled(x, row), done, total, record)

    def recycled(self, x: Any, row: int) -> Any:
        """What the next chain row takes for a hidden [1, 1, H]: the stream of the last of `row` rows, normed or not."""
        last = kernel_rows.window(x, self.engine.array(np.array([row - 1])), 1)
        return llama_norm(last, self.outer["norm"], self.config.eps) if self.config.norm_output else last

    def _pass(self, ids: np.ndarray, hidden: Any, done: int, total: int, record: Recorder) -> Any:
        rows, record = self.placed(ids, hidden.shape[1], done, total, record)
        tap = record.bind(self.side, rows.count)
        return self.run(rows, tap("fc_out", hidden), tap)
