"""EAGLE-3 drafter in plain PyTorch: one fusion layer, run K times in a chain (arXiv 2503.01840).

The layer's parts are those of the P-EAGLE drafter's first layer; parameter names are the hub's tensor names, so that a
checkpoint is a state dict. What differs: `fc` meets the target's taps only, and a chain row takes the residual stream
of the row before it, as it left the layer (before the final norm), in place of a fused hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from parity.errors import UsageError
from parity.references.drafter_config import Eagle3Config, FusedConfig
from parity.references.drafter_layers import Attention, FusionLayer
from parity.references.peagle import Drafter
from parity.references.points import point


class ChainAttention(Attention):
    """P-EAGLE's attention, but for roundings in bfloat16: tables, products and sum of the rotation are each rounded.

    The official implementation does so (and Hugging Face's Llama). With the rotation in float32 and one rounding the
    two differ by up to 1.4 % of a row's largest draft logit in bfloat16; with this they agree bit for bit. float32 is
    the same.
    """

    @point
    def turn(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate queries [B, W, N, D] and keys [B, W, G, D], half-split."""
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        halves = (x.chunk(2, dim=-1) for x in (q, k))
        q, k = (torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1) for a, b in halves)
        return q, k


class Eagle3(Drafter):
    """The drafter: rows of (token, hidden) to the residual stream, and from there to draft logits."""

    config: Eagle3Config

    @classmethod
    def load(
        cls, checkpoint: str | Path, dtype: torch.dtype = torch.float32, embeddings: torch.Tensor | None = None
    ) -> Eagle3:
        """Read config and weights; floating parameters in `dtype`.

        Args:
            embeddings: the target's [V, H], for a drafter whose file has none of its own.

        Raises:
            UsageError: a tensor is missing, surplus or of the wrong shape, or a map leaves its vocabulary.
        """
        return cls.read(checkpoint, Eagle3Config.read(checkpoint), dtype, embeddings)

    @staticmethod
    def fusion_layer(config: FusedConfig) -> FusionLayer:
        """The only layer, with the attention of the official implementation."""
        layer = FusionLayer(config)
        layer.self_attn = ChainAttention(config, 0, 2 * config.hidden_size)
        return layer

    def check(self, checkpoint: str | Path, state: Mapping[str, torch.Tensor]) -> None:
        """`d2t` stays in the target's vocabulary and gives no id twice; `t2d`, where there is one, says the same."""
        ids = self.to_target(torch.arange(self.config.draft_vocab_size))
        if ids.min() < 0 or ids.max() >= self.config.vocab_size or len(ids.unique()) != len(ids):
            raise UsageError(f"{checkpoint}: d2t does not map the draft vocabulary one to one into the target's")
        if "t2d" in state and not torch.equal(self.t2d.nonzero()[:, 0], ids.sort().values):
            raise UsageError(f"{checkpoint}: t2d does not mark the ids that d2t maps to")

    def recycled(self, stream: torch.Tensor) -> torch.Tensor:
        """What the next chain row takes for a hidden [..., H]: the residual stream, normed where `norm_output` says."""
        normed: torch.Tensor = self.norm(stream) if self.config.norm_output else stream
        return normed
