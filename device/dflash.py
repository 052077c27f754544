"""DFlash on an engine: K drafts out of a block of masks, whose context is the target's taps (arXiv 2602.06036)."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.drafter import Drafter, choose, plain_layers
from parity.device.drafter_config import DFlashConfig
from parity.device.engines import widest
from parity.device.kernels import rows as kernel_rows
from parity.device.kernels.drafter_layer import project, remember
from parity.device.kernels.embed import embed
from parity.device.kernels.norm import llama_norm
from parity.device.kernels.round import Parts, State, followed, last, placed
from parity.device.kernels.step import make_block_step
from parity.device.kernels.tap import untapped
from parity.device.plan import Plan
from parity.device.recorder import Recorder
from parity.device.rows import pad_rows


def in_a_block(state: State, parts: Parts, plan: Plan) -> Any:
    """A round's drafts, int32 [B, K], where no host takes part: `DFlash.draft` over rows that `state` decides."""
    config, outer, tables = plan.drafter, parts.outer, parts.tables
    context = llama_norm(project(state.taps, outer["fc"]), outer["hidden_norm"], config.eps)
    rows = placed(0 * state.tokens, state.cached, state.count, state.live, plan.trash)
    step = make_block_step(rows.positions, rows.slots, tables, plan.span)
    for weights, caches in zip(parts.layers, parts.caches, strict=True):
        remember(context, step, weights, caches, config)
    one = 0 * state.count + 1
    ids = followed(last(state.tokens, state.count), one, plan.k + 1, config.mask)
    rows = placed(ids, state.cached + state.count, one * (plan.k + 1), state.live, plan.trash)
    step = make_block_step(rows.positions, rows.slots, tables, plan.span)
    x = plain_layers(embed(rows.ids, outer["embed"]), step, parts.layers, parts.caches, config, untapped)
    return choose(kernel_rows.window(x, one, plan.k), outer, config.eps, untapped)


class DFlash(Drafter):
    """A round writes keys and values of C context rows, then runs a block of K + 1 rows behind them.

    Context rows have taps and no token. The prompt's last one waits for the first round.
    """

    config: DFlashConfig
    family = "dflash"
    on_device = staticmethod(in_a_block)
    make_step = staticmethod(make_block_step)

    def prefill(self, taps: Any, ids: np.ndarray, width: int, record: Recorder) -> None:
        """The context alone."""
        _, positions, slots = self.placed(ids[:0], len(ids), record)
        self.remember(taps, 0, positions, slots, width, record)

    def draft(self, taps: Any, first: int, committed: np.ndarray, k: int, record: Recorder) -> np.ndarray:
        """The context of the last round, then one pass over the block."""
        count = len(committed)
        ids, positions, slots = self.placed(self.block(committed, k), count, record)
        self.remember(taps, first, positions[:count], slots[:count], self.most + 1, record)
        if not k:
            return self.nothing(record)
        ids = record.exact(self.side, "input_ids", ids)
        rows = pad_rows(ids, positions[count:], slots[count:], widest(self.engine, k + 1), self.trash)
        x = self.run(rows, self.embedded(rows), record.bind(self.side, rows.count))
        return self.choose(x, self.drafting(k), k, record)

    def block(self, committed: np.ndarray, k: int) -> np.ndarray:
        """The last known token and K masks, int64 [K + 1]; no row without drafts."""
        return np.concatenate([committed[-1:], np.full(k, self.config.mask)]) if k else committed[:0]

    def drafting(self, k: int) -> int:
        """The number, from 1 on, of the block's first row that drafts: the first mask."""
        return 2

    def layout(self, ids: np.ndarray, others: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids of the block; positions and slots of `others` context rows, then of the block."""
        positions = self.length + np.arange(others + len(ids))
        return ids, positions, positions.copy()

    def placed(self, ids: np.ndarray, others: int, record: Recorder) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same, positions and slots as the recorder wants them."""
        ids, positions, slots = self.layout(ids, others)
        return (
            ids,
            record.exact(self.side, "positions", positions),
            record.exact(self.side, "slots", slots),
        )

    def remember(
        self, taps: Any, first: int, positions: np.ndarray, slots: np.ndarray, width: int, record: Recorder
    ) -> None:
        """Every layer's keys and values of the context rows, padded to `width`, into their slots."""
        count, width = len(positions), widest(self.engine, width)
        taps = self.shown_taps(taps, first, count, width, record)
        fused = record.bind(self.side, count)("fc_out", project(taps, self.outer["fc"]))
        context = self.context(fused)
        step = self.step(pad_rows(np.zeros(count, np.int64), positions, slots, width, self.trash))
        for weights, caches in zip(self.layers, self.caches, strict=True):
            remember(context, step, weights, caches, self.config)

    def context(self, fused: Any) -> Any:
        """What the layers project of fused taps [1, W, H]."""
        return llama_norm(fused, self.outer["hidden_norm"], self.config.eps)
