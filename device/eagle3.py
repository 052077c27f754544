"""EAGLE-3 on an engine: one fusion layer, run K times in a chain (arXiv 2503.01840)."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.chain import Chain, chained
from parity.device.drafter import FusedDrafter, fused_layers, normed
from parity.device.drafter_config import Eagle3Config
from parity.device.engines import widest
from parity.device.kernels import rows as kernel_rows
from parity.device.kernels.drafter_layer import project
from parity.device.kernels.embed import embed
from parity.device.kernels.norm import llama_norm
from parity.device.kernels.round import Parts, PassRows, State, placed
from parity.device.kernels.step import make_step
from parity.device.kernels.tap import untapped
from parity.device.plan import Plan
from parity.device.recorder import Recorder


def recycling(state: State, parts: Parts, plan: Plan) -> Any:
    """A round's drafts, int32 [B, K], where no host takes part: `Eagle3.draft` over rows that `state` decides."""
    config, outer, live = plan.drafter, parts.outer, state.live

    def run(rows: PassRows, hidden: Any) -> Any:
        step = make_step(rows.positions, rows.slots, parts.tables, plan.span)
        return fused_layers(embed(rows.ids, outer["embed"]), hidden, step, parts.layers, parts.caches, config, untapped)

    def extend(rows: PassRows, x: Any, row: Any) -> Any:
        return run(rows, recycled(x, row, outer, config))

    first = placed(state.tokens, state.cached, state.count, live, plan.trash)
    x = run(first, project(normed(state.taps, outer, config.eps), outer["fc"]))
    return chained(x, state.count, state, parts, plan, extend)


def recycled(x: Any, row: Any, outer: dict[str, Any], config: Eagle3Config) -> Any:
    """What the next chain row takes for a hidden [B, 1, H]: the stream of the last of `row` [B] rows, normed or not."""
    last = kernel_rows.window(x, row - 1, 1)
    return llama_norm(last, outer["norm"], config.eps) if config.norm_output else last


class Eagle3(Chain, FusedDrafter):
    """A chain row pairs its token with the residual stream that the row before it left.

    Ids are shifted by one against their positions. `norm_output` alone decides whether the stream is normed.
    """

    config: Eagle3Config
    family = "eagle-3"
    on_device = staticmethod(recycling)

    def forward(self, taps: Any, first: int, committed: np.ndarray, chained: int, width: int, record: Recorder) -> Any:
        """Committed rows with their true taps."""
        count, width = len(committed), widest(self.engine, width)
        taps = self.shown_taps(taps, first, count, width, record)
        return self._pass(committed, project(self.normed(taps), self.outer["fc"]), 0, count + chained, record)

    def extend(self, draft: np.ndarray, x: Any, row: int, done: int, total: int, record: Recorder) -> Any:
        """One chain row with a recycled hidden."""
        return self._pass(draft, self.recycled(x, row), done, total, record)

    def recycled(self, x: Any, row: int) -> Any:
        """See `recycled`."""
        return recycled(x, self.engine.array(np.array([row])), self.outer, self.config)

    def _pass(self, ids: np.ndarray, hidden: Any, done: int, total: int, record: Recorder) -> Any:
        rows, record = self.placed(ids, hidden.shape[1], done, total, record)
        tap = record.bind(self.side, rows.count)
        return self.run(rows, tap("fc_out", hidden), tap)
