"""The drafter on an engine: P-EAGLE over committed and masked rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.drafter_config import DrafterConfig
from parity.device.engines import AnyEngine
from parity.device.kernels import rows as kernel_rows
from parity.device.kernels.drafter_layer import fuse, midlayer, plain_layer
from parity.device.kernels.embed import embed
from parity.device.kernels.head import greedy, to_target_ids
from parity.device.kernels.linear import linear
from parity.device.kernels.norm import llama_norm
from parity.device.kernels.program import program
from parity.device.kernels.tap import Tap
from parity.device.model import Model
from parity.device.recorder import Recorder
from parity.device.rows import Rows, pad_rows
from parity.device.weights import Weights


class Drafter(Model):
    """Weights, caches and forward pass of the drafter."""

    side = "drafter"

    def __init__(
        self,
        config: DrafterConfig,
        weights: tuple[Weights, list[Weights]],
        positions: int,
        engine: AnyEngine,
        dtype: np.dtype,
    ) -> None:
        self.config = config
        super().__init__(weights, config.attention, (None,), positions, engine, dtype)

    def forward(self, taps: Any, first: int, committed: np.ndarray, masked: int, width: int, record: Recorder) -> Any:
        """Committed rows from the cache's end on, then masked rows; W logical rows padded to `width`.

        Args:
            taps: [1, S, T * H of the target], of one target pass.
            first: the row of `taps` that belongs to the first committed row.
            committed: ids [C]; row i pairs the token behind a position with the taps at that position.
            masked: how many masked rows follow.

        Returns:
            the last residual stream [1, width, H].
        """
        count = len(committed)
        taps = kernel_rows.window(taps, self.engine.array(np.array([first])), width)
        taps = record.bind(self.side, count)("taps", taps)
        rows = self.rows(committed, masked, width, record)
        tap = record.bind(self.side, rows.count)
        fused = fuse(taps, self.outer["mask_hidden"], self.engine.array(np.array([count])), self.outer["fc"])
        return self._layers(rows, tap("fc_out", fused), tap)

    def choose(self, x: Any, committed: int, k: int, record: Recorder) -> np.ndarray:
        """Drafts of the last committed row and of the K-1 masked rows: target ids, int64 [K]."""
        x = kernel_rows.window(x, self.engine.array(np.array([committed - 1])), k)
        ids = choose(x, self.outer, self.config.eps, record.bind(self.side, k))
        return record.ids(self.side, "draft_tokens", ids, k)

    def rows(self, committed: np.ndarray, masked: int, width: int, record: Recorder) -> Rows:
        """The rows of a pass, as the recorder wants them and padded."""
        ids, positions, slots = self.layout(committed, masked)
        ids = record.exact(self.side, "input_ids", ids)
        positions = record.exact(self.side, "positions", positions)
        slots = record.exact(self.side, "slots", slots)
        return pad_rows(ids, positions, slots, width, self.trash)

    def layout(self, committed: np.ndarray, masked: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, shifted by one against their positions; a row writes the slot of its position. int64 [C + masked]."""
        ids = np.concatenate([committed, np.full(masked, self.config.placeholder)])
        positions = self.length + np.arange(len(ids))
        return ids, positions, positions.copy()

    def _layers(self, rows: Rows, fused: Any, tap: Tap) -> Any:
        step = self.step(rows)
        embedded = embed(self.engine.array(rows.ids), self.outer["embed"])
        x = fused
        for layer, (weights, caches) in enumerate(zip(self.layers, self.caches, strict=True)):
            if layer:
                x = plain_layer(x, step, weights, caches, self.config, tap.at(layer))
            else:
                x = midlayer(embedded, x, step, weights, caches, self.config, tap.at(layer))
        return x


@program
def choose(x: Any, outer: dict[str, Any], eps: float, tap: Tap) -> Any:
    """Final norm, draft logits and greedy ids of x [1, K, H], in the target's vocabulary: int32 [1, K]."""
    logits = tap("logits", linear(tap("pre_head_hidden", llama_norm(x, outer["norm"], eps)), outer["head"]))
    return to_target_ids(greedy(logits), outer["d2t"])
