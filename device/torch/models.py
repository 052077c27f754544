"""Target and drafters as the host loop knows them, with PyTorch's kernels in the place of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from parity.device.drafter import FusedDrafter
from parity.device.eagle3 import Eagle3
from parity.device.kernels.tap import Tap
from parity.device.model import Model
from parity.device.peagle import PEagle
from parity.device.recorder import Recorder
from parity.device.rope_config import RopeConfig
from parity.device.rows import Rows, refuse_outside
from parity.device.target import Target
from parity.device.torch import attention
from parity.device.torch.layers import (
    Step,
    gpt_oss_norm,
    join,
    linear,
    llama_norm,
    midlayer,
    plain_layer,
    target_layer,
)
from parity.device.torch.tensors import array
from parity.device.weights import Weights


class TorchModel(Model):
    """Weights and static caches as tensors.

    A pass sees no cache row behind its last one: rows that were rejected stay as they are until others overwrite them.
    """

    def hold(self, layers: list[Weights], windows: tuple[int | None, ...]) -> None:
        """As the parent's, projections of one input as one matrix."""
        super().hold(layers, windows)
        for layer in self.layers:
            join(layer)

    def turn(self, rope: RopeConfig) -> None:
        """Rotate by this RoPE."""
        self.rope = rope
        self.turns = attention.turns(rope, self._attention.head_dim, self.positions)

    def rollback(self, length: int) -> None:
        """Keep the first `length` rows. Where committed ones go, the old caches keep them: the verb may be undone."""
        if length < self.length:
            self.caches = [(keys.clone(), values.clone()) for keys, values in self.caches]
        self.length = length

    def step(self, rows: Rows) -> Step:
        """Masks, rotations and slots of this pass."""
        refuse_outside(self.side, "position", rows.positions, self.positions)
        refuse_outside(self.side, "slot", rows.slots, self.trash + 1)
        positions, slots = array(rows.positions[0]), array(rows.slots[0])
        span = int(rows.positions.max()) + 1
        seen = {window: attention.seen(positions, span, window) for window in dict.fromkeys(self.windows)}
        return Step(slots, self.turns[positions], span, seen)

    def embedded(self, rows: Rows) -> Tensor:
        """The embeddings of a pass' ids [B, W, H]."""
        return embedding(self.engine.array(rows.ids), self.outer["embed"])


class TorchTarget(TorchModel, Target):
    """gpt-oss."""

    def layer(self, held: int, x: Any, step: Step, tap: Tap) -> Any:
        """The layer of this number among those that it holds, over x [1, W, H]."""
        weights, caches, window = self.layers[held], self.caches[held], self.windows[held]
        return target_layer(x, step, weights, caches, self.config, window, tap)

    def join(self, streams: list[Any], taps: tuple[int, ...]) -> Any:
        """The taps side by side [B, W, T * H]; `streams[k]` is in_of[k]."""
        return torch.cat([streams[number] for number in taps], dim=-1)

    def choose(self, x: Any, rows: Rows, group: str, record: Recorder) -> np.ndarray:
        """Final norm, logits and greedy ids of every logical row, int64 [S]; the lowest id on a tie."""
        tap = record.bind("target", rows.count)
        normed = tap("pre_head_hidden", gpt_oss_norm(x, self.outer["norm"], self.config.eps))
        logits = tap.of(group)("logits", linear(normed, self.outer["head"]))
        return record.ids(group, "tokens", logits.argmax(-1), rows.count)


class TorchDrafter(TorchModel, FusedDrafter):
    """A drafter on taps."""

    def normed(self, taps: Any) -> Any:
        """Taps [B, W, T * H of the target], or what stands for them, as `fc` takes them."""
        weight = self.outer.get("tap_norm")  # [T * H], or [T, H]: each tap alone
        if weight is None:
            return taps
        return llama_norm(taps.unflatten(-1, weight.shape), weight, self.config.eps).flatten(-weight.ndim)

    def fused(self, taps: Any, committed: int) -> Any:
        """Fused hidden of every row [B, W, H]; masked rows have the learnt hidden, which goes through fc as well."""
        inputs = self.normed(taps)
        if "mask_hidden" in self.outer:
            inputs[:, committed:] = self.normed(self.outer["mask_hidden"])
        return linear(inputs, self.outer["fc"])

    def run(self, rows: Rows, x: Any, tap: Any) -> Any:
        """Every layer over rows of fused hidden [B, W, H]: the last residual stream."""
        step, embedded = self.step(rows), self.embedded(rows)
        for layer, (weights, caches) in enumerate(zip(self.layers, self.caches, strict=True)):
            own = step, weights, caches, self.config, tap.at(layer)
            x = plain_layer(x, *own) if layer else midlayer(embedded, x, *own)
        return x

    def shown_taps(self, taps: Any, first: int, count: int, width: int, record: Recorder) -> Any:
        """`count` rows of a target pass' taps from `first` on, padded to `width`, as the recorder wants them."""
        index = torch.arange(first, first + width, device=taps.device).clamp(max=taps.shape[1] - 1)
        return record.bind(self.side, count)("taps", taps[:, index])

    def choose(self, x: Any, committed: int, k: int, record: Recorder) -> np.ndarray:
        """Drafts of row `committed` - 1 and of those behind it: target ids, int64 [k]."""
        tap = record.bind(self.side, k)
        rows = x[:, committed - 1 : committed - 1 + k]
        normed = tap("pre_head_hidden", llama_norm(rows, self.outer["norm"], self.config.eps))
        drafts = tap("logits", linear(normed, self.outer["head"])).argmax(-1)
        return record.ids(self.side, "draft_tokens", drafts + self.outer["d2t"][drafts], k)


class TorchPEagle(TorchDrafter, PEagle):
    """P-EAGLE."""


class TorchEagle3(TorchDrafter, Eagle3):
    """EAGLE-3."""

    def recycled(self, x: Any, row: int) -> Any:
        """What the next chain row takes for a hidden [1, 1, H]: the stream of the last of `row` rows, normed or not."""
        last = x[:, row - 1 : row]
        return llama_norm(last, self.outer["norm"], self.config.eps) if self.config.norm_output else last
