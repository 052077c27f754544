"""The target on an engine: gpt-oss over any number of rows, with its taps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parity.device.config import TargetConfig
from parity.device.engines import AnyEngine
from parity.device.kernels.embed import embed
from parity.device.kernels.head import greedy
from parity.device.kernels.linear import linear
from parity.device.kernels.norm import gpt_oss_norm
from parity.device.kernels.program import program
from parity.device.kernels.step import Step
from parity.device.kernels.tap import Tap
from parity.device.kernels.target_layer import target_layer
from parity.device.model import Model
from parity.device.recorder import Recorder
from parity.device.rows import Rows
from parity.device.weights import Weights


class Target(Model):
    """Weights, caches and forward pass of the target."""

    side = "target"

    def __init__(
        self,
        config: TargetConfig,
        weights: tuple[Weights, list[Weights]],
        positions: int,
        engine: AnyEngine,
        dtype: np.dtype,
    ) -> None:
        self.config = config
        super().__init__(weights, config.attention, config.windows, positions, engine, dtype)

    def forward(self, rows: Rows, taps: tuple[int, ...], record: Recorder) -> tuple[Any, Any]:
        """Embedding and all layers over W rows.

        Args:
            taps: in_of numbers, in the order in which they are concatenated.

        Returns:
            the last residual stream [1, W, H] and the taps [1, W, T * H].
        """
        step, tap = self.step(rows), record.bind("target", rows.count)
        streams = [tap("embed", self.embedded(rows))]
        for layer in range(len(self.layers)):
            streams.append(self.layer(layer, streams[-1], step, tap.at(layer)))
        return streams[-1], self.join(streams, taps) if taps else None

    def embedded(self, rows: Rows) -> Any:
        """The embeddings of a pass' ids [1, W, H]."""
        return embed(self.engine.array(rows.ids), self.outer["embed"])

    def layer(self, held: int, x: Any, step: Any, tap: Tap) -> Any:
        """The layer of this number among those that it holds, over x [1, W, H]."""
        weights, caches, window = self.layers[held], self.caches[held], self.windows[held]
        return target_layer(x, step, weights, caches, self.config, window, tap)

    def join(self, streams: list[Any], taps: tuple[int, ...]) -> Any:
        """The taps side by side [1, W, T * H]; `streams[k]` is in_of[k]."""
        return joined(streams, taps)

    def choose(self, x: Any, rows: Rows, group: str, record: Recorder) -> np.ndarray:
        """Final norm, logits and ids of every logical row, int64 [S]; `group` names the stages.

        They are greedy ones; where it samples, those of a verify pass and of a prompt's last row are drawn.
        """
        tap = record.bind("target", rows.count)
        if self.sampler is None:
            ids = choose(x, self.outer, self.config.eps, group, tap)
        else:
            logits = scores(x, self.outer, self.config.eps, group, tap)
            ids = self.sampler.verify(logits, rows) if group == "verify" else self.sampler.first(logits, rows)
        return record.ids(group, "tokens", ids, rows.count)


def residual_streams(
    x: Any,
    step: Step,
    layers: Sequence[dict[str, Any]],
    caches: Sequence[tuple[Any, Any]],
    config: TargetConfig,
    windows: Sequence[int | None],
    tap: Tap,
) -> list[Any]:
    """Every layer over embeddings x [B, W, H]: the residual stream in front of the first and behind each of them."""
    streams = [x]
    for layer, (weights, held, window) in enumerate(zip(layers, caches, windows, strict=True)):
        streams.append(target_layer(streams[-1], step, weights, held, config, window, tap.at(layer)))
    return streams


def joined(streams: Sequence[Any], taps: Sequence[int]) -> Any:
    """Taps side by side [B, W, T * H]; `streams[k]` is in_of[k]."""
    return np.concatenate([streams[number] for number in taps], axis=-1)


@program
def choose(x: Any, outer: dict[str, Any], eps: float, group: str, tap: Tap) -> Any:
    """Final norm, logits and greedy ids of x [1, W, H]: int32 [1, W]."""
    return greedy(scores(x, outer, eps, group, tap))


def scores(x: Any, outer: dict[str, Any], eps: float, group: str, tap: Tap) -> Any:
    """Final norm and logits of x [1, W, H]: [1, W, V]."""
    normed = tap("pre_head_hidden", gpt_oss_norm(x, outer["norm"], eps))
    return tap.of(group)("logits", linear(normed, outer["head"]))
