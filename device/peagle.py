"""P-EAGLE on an engine: K drafts in one pass over committed and masked rows (arXiv 2602.01469)."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.drafter import FusedDrafter, choose, fused_layers, normed
from parity.device.drafter_config import PEagleConfig
from parity.device.engines import widest
from parity.device.kernels import rows as kernel_rows
from parity.device.kernels.drafter_layer import fuse
from parity.device.kernels.embed import embed
from parity.device.kernels.round import Parts, State, followed, placed
from parity.device.kernels.step import make_step
from parity.device.kernels.tap import untapped
from parity.device.plan import Plan
from parity.device.recorder import Recorder


def parallel(state: State, parts: Parts, plan: Plan) -> Any:
    """A round's drafts, int32 [B, K], where no host takes part: `PEagle.draft` over rows that `state` decides."""
    config, outer, masked = plan.drafter, parts.outer, plan.k - 1
    width = plan.k + 1 + masked
    ids = followed(state.tokens, state.count, width, config.placeholder)
    rows = placed(ids, state.cached, state.count + masked, state.live, plan.trash)
    taps = kernel_rows.window(state.taps, 0 * state.count, width)
    hidden = fuse(
        normed(taps, outer, config.eps), normed(outer["mask_hidden"], outer, config.eps), state.count, outer["fc"]
    )
    step = make_step(rows.positions, rows.slots, parts.tables, plan.span)
    x = fused_layers(embed(rows.ids, outer["embed"]), hidden, step, parts.layers, parts.caches, config, untapped)
    return choose(kernel_rows.window(x, state.count - 1, plan.k), outer, config.eps, untapped)


class PEagle(FusedDrafter):
    """A pass has room for C committed rows, K + 1 of the largest K at the most, and for its own K - 1 masked ones."""

    config: PEagleConfig
    family = "p-eagle"
    on_device = staticmethod(parallel)

    def prefill(self, taps: Any, ids: np.ndarray, width: int, record: Recorder) -> None:
        """No masked rows."""
        self.forward(taps, 0, ids, 0, width, record)

    def draft(self, taps: Any, first: int, committed: np.ndarray, k: int, record: Recorder) -> np.ndarray:
        """One pass."""
        masked = max(k - 1, 0)
        x = self.forward(taps, first, committed, masked, self.most + 1 + masked, record)
        return self.choose(x, len(committed), k, record) if k else self.nothing(record)

    def forward(self, taps: Any, first: int, committed: np.ndarray, masked: int, width: int, record: Recorder) -> Any:
        """Committed rows from the cache's end on, then masked rows; W logical rows padded to `width`.

        Args:
            taps, first, committed: as for `draft`.
            masked: how many masked rows follow.

        Returns:
            the last residual stream [1, width, H].
        """
        count, width = len(committed), widest(self.engine, width)
        taps = self.shown_taps(taps, first, count, width, record)
        rows = self.rows(committed, masked, width, record)
        tap = record.bind(self.side, rows.count)
        inputs = self.normed(taps), self.normed(self.outer["mask_hidden"])
        fused = fuse(*inputs, self.engine.array(np.array([count])), self.outer["fc"])
        return self.run(rows, tap("fc_out", fused), tap)

    def layout(self, ids: np.ndarray, others: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Committed ids, shifted by one against their positions, and `others` masked rows; slots are positions."""
        ids = np.concatenate([ids, np.full(others, self.config.placeholder)])
        positions = self.length + np.arange(len(ids))
        return ids, positions, positions.copy()
