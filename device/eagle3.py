"""EAGLE-3 on an engine: one fusion layer, run K times in a chain (arXiv 2503.01840)."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.chain import Chain
from parity.device.drafter import FusedDrafter
from parity.device.drafter_config import Eagle3Config
from parity.device.kernels import rows as kernel_rows
from parity.device.kernels.drafter_layer import project
from parity.device.recorder import Recorder


class Eagle3(Chain, FusedDrafter):
    """A chain row pairs its token with the residual stream that the row before it left, not yet normed.

    Ids are shifted by one against their positions.
    """

    config: Eagle3Config
    family = "eagle-3"

    def forward(self, taps: Any, first: int, committed: np.ndarray, chained: int, width: int, record: Recorder) -> Any:
        """Committed rows with their true taps."""
        count = len(committed)
        taps = self.shown_taps(taps, first, count, width, record)
        return self._pass(committed, project(taps, self.outer["fc"]), 0, count + chained, record)

    def extend(self, draft: np.ndarray, x: Any, row: int, done: int, total: int, record: Recorder) -> Any:
        """One chain row with a recycled hidden."""
        return self._pass(draft, self.recycled(x, row), done, total, record)

    def recycled(self, x: Any, row: int) -> Any:
        """What the next chain row takes for a hidden [1, 1, H]: the stream of the last of `row` rows."""
        return kernel_rows.window(x, self.engine.array(np.array([row - 1])), 1)

    def _pass(self, ids: np.ndarray, hidden: Any, done: int, total: int, record: Recorder) -> Any:
        rows, record = self.placed(ids, hidden.shape[1], done, total, record)
        tap = record.bind(self.side, rows.count)
        return self.run(rows, tap("fc_out", hidden), tap)
