"""The layers of the drafters in plain PyTorch: cache, norm, attention, MLP, the two layer kinds.

Parameter names are the hub's tensor names, so that a checkpoint is a state dict.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import torch
from torch import nn
from torch.nn import functional as F

from parity.references.drafter_config import DrafterConfig, FusedConfig
from parity.references.points import point
from parity.references.rope import rotate

LayerTap = Callable[[str, torch.Tensor], torch.Tensor]
Tables = tuple[torch.Tensor, torch.Tensor]
"""cos and sin [B, W, 1, D/2]."""


def untapped(part: str, value: torch.Tensor) -> torch.Tensor:
    """The tap that neither records nor replaces."""
    return value


class KVCache:
    """Full-context keys and values per layer, [B, G, S, D]; slot = absolute position."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.start = 0

    def extend(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write rows from slot `start` on, dropping whatever stood there, and return all rows."""
        if layer in self.rows:
            old_k, old_v = self.rows[layer]
            k = torch.cat((old_k[:, :, : self.start], k), dim=2)
            v = torch.cat((old_v[:, :, : self.start], v), dim=2)
        self.rows[layer] = (k, v)
        return k, v

    def entering(self, k: torch.Tensor, v: torch.Tensor, tap: LayerTap) -> tuple[torch.Tensor, torch.Tensor]:
        """What is written of rows [B, G, W, D]: the same."""
        return k, v

    def copy(self) -> KVCache:
        """The same rows in another object."""
        other = copy(self)
        other.rows = dict(self.rows)
        return other

    def visible(self, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor, tap: LayerTap) -> torch.Tensor:
        """What rows with queries [B, N, W, D] attend to of keys [B, G, S, D]: the mask [B, 1, W, S] as it is."""
        return mask

    @point
    def crop(self, length: int) -> None:
        """Keep the first `length` rows of every layer."""
        self.rows = {layer: (k[:, :, :length], v[:, :, :length]) for layer, (k, v) in self.rows.items()}


class RMSNorm(nn.Module):
    """Llama's order: normalise in float32, cast, then multiply by the weight."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """Causal GQA without biases; `input_size` is 2H in the fusion layer."""

    def __init__(self, config: DrafterConfig, layer: int, input_size: int):
        super().__init__()
        self.config, self.layer = config, layer
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(input_size, query, bias=False)
        self.k_proj = nn.Linear(input_size, key, bias=False)
        self.v_proj = nn.Linear(input_size, key, bias=False)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)

    def forward(
        self, x: torch.Tensor, tables: Tables, mask: torch.Tensor, cache: KVCache | None, tap: LayerTap
    ) -> torch.Tensor:
        """[B, W, input_size] and mask [B, 1, W, S] to [B, W, H]."""
        B, W, _ = x.shape
        q = self.q_proj(x).view(B, W, self.config.num_heads, -1)
        k = self.k_proj(x).view(B, W, self.config.num_kv_heads, -1)
        v = self.v_proj(x).view(B, W, self.config.num_kv_heads, -1).transpose(1, 2)
        q, k = (rows.transpose(1, 2) for rows in self.turn(q, k, *tables))
        if cache is not None:
            k, v = self.remember(*cache.entering(k, v, tap), cache)
            mask = cache.visible(q, k, mask, tap)
        out: torch.Tensor = self.o_proj(self.attend(q, k, v, mask).reshape(B, W, -1))
        return out

    @point
    def turn(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate queries [B, W, N, D] and keys [B, W, G, D]."""
        return rotate(q, cos, sin), rotate(k, cos, sin)

    @point
    def remember(self, k: torch.Tensor, v: torch.Tensor, cache: KVCache) -> tuple[torch.Tensor, torch.Tensor]:
        """Write these rows [B, G, W, D] and return all rows [B, G, S, D]."""
        return cache.extend(self.layer, k, v)

    @point
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Queries [B, N, W, D] over keys and values [B, G, S, D]: [B, W, N, D]."""
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = (q @ k.transpose(2, 3)) * self.config.head_dim**-0.5
        scores = scores.float().masked_fill(~mask, float("-inf"))
        weights = F.softmax(scores, dim=-1).to(q.dtype)
        return (weights @ v).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate) * up)."""

    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., H] to [..., H]."""
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class PlainLayer(nn.Module):
    """A Llama layer."""

    def __init__(self, config: DrafterConfig, layer: int):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.self_attn = Attention(config, layer, config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.mlp = MLP(config)

    def forward(
        self, x: torch.Tensor, tables: Tables, mask: torch.Tensor, cache: KVCache | None, tap: LayerTap
    ) -> torch.Tensor:
        """[B, W, H] to [B, W, H]."""
        attn_out = tap("attn_out", self.self_attn(self.input_layernorm(x), tables, mask, cache, tap))
        return self.feed_forward(self.after_attention(x, attn_out), tap)

    @point
    def after_attention(self, x: torch.Tensor, attn_out: torch.Tensor) -> torch.Tensor:
        """The first residual sum."""
        return x + attn_out

    def feed_forward(self, x: torch.Tensor, tap: LayerTap) -> torch.Tensor:
        """The second half, which the fusion layer shares."""
        ffn_out = tap("ffn_out", self.mlp(self.post_attention_layernorm(x)))
        return tap("out", self.after_mlp(x, ffn_out))

    @point
    def after_mlp(self, x: torch.Tensor, ffn_out: torch.Tensor) -> torch.Tensor:
        """The second residual sum."""
        return x + ffn_out


class FusionLayer(PlainLayer):
    """Layer 0: attends over [norm(embedding), norm(fused hidden)], keeps the hidden as residual."""

    def __init__(self, config: FusedConfig):
        super().__init__(config, 0)
        self.hidden_norm = RMSNorm(config.hidden_size, config.eps)
        self.self_attn = Attention(config, 0, 2 * config.hidden_size)
        self.norm_before_residual = config.norm_before_residual

    def fusion(
        self,
        embed: torch.Tensor,
        hidden: torch.Tensor,
        tables: Tables,
        mask: torch.Tensor,
        cache: KVCache | None,
        tap: LayerTap,
    ) -> torch.Tensor:
        """Embeddings and fused hidden [B, W, H] to the residual stream [B, W, H]."""
        normed = self.hidden_norm(hidden)
        both = torch.cat((self.input_layernorm(embed), normed), dim=-1)
        attn_out = tap("attn_out", self.self_attn(both, tables, mask, cache, tap))
        return self.feed_forward(self.after_attention(self.residual(embed, hidden, normed), attn_out), tap)

    @point
    def residual(self, embed: torch.Tensor, hidden: torch.Tensor, normed: torch.Tensor) -> torch.Tensor:
        """What goes round the attention."""
        return normed if self.norm_before_residual else hidden
