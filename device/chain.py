"""A drafter that runs K passes a round on an engine: C committed rows, then K - 1 chain rows, each a pass alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from parity.device.drafter import Drafter, choose
from parity.device.kernels import rows as kernel_rows
from parity.device.kernels.round import Parts, PassRows, State, placed
from parity.device.kernels.tap import untapped
from parity.device.plan import Plan
from parity.device.recorder import Recorder
from parity.device.rows import Rows


def chained(
    x: Any, count: Any, state: State, parts: Parts, plan: Plan, extend: Callable[[PassRows, Any, Any], Any]
) -> Any:
    """The drafts of a chain, int32 [B, K], where no host takes part.

    Args:
        x: the residual stream of the committed rows' pass, of which the last of `count` [B] drafts.
        extend: the stream of a pass over chain rows, of the stream before it and of its row that drafted, from 1 on.
    """
    one, behind = 0 * count + 1, state.cached + count
    drafts: list[Any] = []
    for step in range(plan.k):
        if step:
            rows = placed(drafts[-1], behind + (step - 1), one, state.live, plan.trash)
            x, count = extend(rows, x, count), one
        at = kernel_rows.window(x, count - 1, 1)
        drafts.append(choose(at, parts.outer, plan.drafter.eps, untapped))
    return np.concatenate(drafts, axis=1)


class Chain(Drafter):
    """A chain row carries the draft before it, one position further on."""

    @abstractmethod
    def forward(self, taps: Any, first: int, committed: np.ndarray, chained: int, width: int, record: Recorder) -> Any:
        """Committed rows from the cache's end on, padded to `width`.

        Args:
            taps, first, committed: as for `draft`.
            chained: how many chain rows the round has behind them.

        Returns:
            the residual stream that leaves the last layer [1, width, H].
        """

    @abstractmethod
    def extend(self, draft: np.ndarray, x: Any, row: int, done: int, total: int, record: Recorder) -> Any:
        """One chain row, behind `done` of this round's `total` rows: its residual stream [1, 1, H].

        Args:
            draft: target id [1], drafted by the row before.
            x: the residual stream of the pass before, of which the last of `row` rows drafted.
        """

    def prefill(self, taps: Any, ids: np.ndarray, width: int, record: Recorder) -> None:
        """No chain rows."""
        self.forward(taps, 0, ids, 0, width, record)

    def width(self, committed: int) -> int:
        """Rows of a round's first pass, padding included."""
        return self.most + 1

    def draft(self, taps: Any, first: int, committed: np.ndarray, k: int, record: Recorder) -> np.ndarray:
        """K passes; without drafts one, over the committed rows."""
        rows, chained = len(committed), max(k - 1, 0)
        total = rows + chained
        x = self.forward(taps, first, committed, chained, self.width(rows), record)
        if not k:
            return self.nothing(record)
        drafts = [self.choose(x, rows, 1, record.part(0, 1, k))]
        for step in range(1, k):
            x = self.extend(drafts[-1], x, rows, total - k + step, total, record)
            rows = 1
            drafts.append(self.choose(x, rows, 1, record.part(step, 1, k)))
        return np.concatenate(drafts)

    def layout(self, ids: np.ndarray, others: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids behind `others` rows of the same round, from the cache's end on; slots are positions."""
        positions = self.length + others + np.arange(len(ids))
        return ids, positions, positions.copy()

    def placed(self, ids: np.ndarray, width: int, done: int, total: int, record: Recorder) -> tuple[Rows, Recorder]:
        """The rows of one pass, and the recorder of the round's rows that they are."""
        record = record.part(done, len(ids), total)
        return self.rows(ids, done, width, record), record
