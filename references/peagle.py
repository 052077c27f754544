"""P-EAGLE drafter in plain PyTorch: K drafts in one forward (arXiv 2602.01469).

File order is dataflow order: cache, norm, attention, MLP, the two layer kinds, the model. Parameter names are the hub's tensor names, so that a checkpoint is a state dict.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parity.references.checkpoint import read_state
from parity.references.peagle_config import PEagleConfig
from parity.references.points import point
from parity.references.rope import rotate, schedule, tables

LayerTap = Callable[[str, Tensor], Tensor]
Tables = tuple[Tensor, Tensor]
"""cos and sin, [B, W, 1, D/2] each."""


def untapped(part: str, value: Tensor) -> Tensor:
    """The tap that neither records nor replaces."""
    return value


class KVCache:
    """Full-context keys and values per layer, [B, G, S, D]; slot = absolute position."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[Tensor, Tensor]] = {}
        self.start = 0

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows from slot `start` on, dropping whatever stood there, and return all rows."""
        if layer in self.rows:
            old_k, old_v = self.rows[layer]
            k = torch.cat((old_k[:, :, : self.start], k), dim=2)
            v = torch.cat((old_v[:, :, : self.start], v), dim=2)
        self.rows[layer] = (k, v)
        return k, v

    def copy(self) -> KVCache:
        """The same rows in another object."""
        other = KVCache()
        other.rows, other.start = dict(self.rows), self.start
        return other

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

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """Causal GQA without biases; `input_size` is 2H in the fusion layer."""

    def __init__(self, config: PEagleConfig, layer: int, input_size: int):
        super().__init__()
        self.config, self.layer = config, layer
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(input_size, query, bias=False)
        self.k_proj = nn.Linear(input_size, key, bias=False)
        self.v_proj = nn.Linear(input_size, key, bias=False)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)

    def forward(self, x: Tensor, tables: Tables, mask: Tensor, cache: KVCache | None) -> Tensor:
        """[B, W, input_size] and mask [B, 1, W, S] to [B, W, H]."""
        B, W, _ = x.shape
        q = self.q_proj(x).view(B, W, self.config.num_heads, -1)
        k = self.k_proj(x).view(B, W, self.config.num_kv_heads, -1)
        v = self.v_proj(x).view(B, W, self.config.num_kv_heads, -1).transpose(1, 2)
        q, k = (rows.transpose(1, 2) for rows in self.turn(q, k, *tables))
        if cache is not None:
            k, v = self.remember(k, v, cache)
        return self.o_proj(self.attend(q, k, v, mask).reshape(B, W, -1))

    @point
    def turn(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate queries [B, W, N, D] and keys [B, W, G, D]."""
        return rotate(q, cos, sin), rotate(k, cos, sin)

    @point
    def remember(self, k: Tensor, v: Tensor, cache: KVCache) -> tuple[Tensor, Tensor]:
        """Write these rows [B, G, W, D] and return all rows [B, G, S, D]."""
        return cache.extend(self.layer, k, v)

    @point
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Queries [B, N, W, D] over keys and values [B, G, S, D]: [B, W, N, D]."""
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = (q @ k.transpose(2, 3)) * self.config.head_dim**-0.5
        scores = scores.float().masked_fill(~mask, float("-inf"))
        weights = F.softmax(scores, dim=-1).to(q.dtype)
        return (weights @ v).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate) * up)."""

    def __init__(self, config: PEagleConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class PlainLayer(nn.Module):
    """A Llama layer."""

    def __init__(self, config: PEagleConfig, layer: int):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.self_attn = Attention(config, layer, config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, tables: Tables, mask: Tensor, cache: KVCache | None, tap: LayerTap) -> Tensor:
        """[B, W, H] to [B, W, H]."""
        attn_out = tap("attn_out", self.self_attn(self.input_layernorm(x), tables, mask, cache))
        return self.feed_forward(self.after_attention(x, attn_out), tap)

    @point
    def after_attention(self, x: Tensor, attn_out: Tensor) -> Tensor:
        """The first residual sum."""
        return x + attn_out

    def feed_forward(self, x: Tensor, tap: LayerTap) -> Tensor:
        """The second half, which the fusion layer shares."""
        ffn_out = tap("ffn_out", self.mlp(self.post_attention_layernorm(x)))
        return tap("out", self.after_mlp(x, ffn_out))

    @point
    def after_mlp(self, x: Tensor, ffn_out: Tensor) -> Tensor:
        """The second residual sum."""
        return x + ffn_out


class FusionLayer(PlainLayer):
    """Layer 0: attends over [norm(embedding), norm(fused hidden)], keeps the hidden as residual."""

    def __init__(self, config: PEagleConfig):
        super().__init__(config, 0)
        self.hidden_norm = RMSNorm(config.hidden_size, config.eps)
        self.self_attn = Attention(config, 0, 2 * config.hidden_size)
        self.norm_before_residual = config.norm_before_residual

    def fusion(
        self, embed: Tensor, hidden: Tensor, tables: Tables, mask: Tensor, cache: KVCache | None, tap: LayerTap
    ) -> Tensor:
        """Embeddings and fused hidden [B, W, H] to the residual stream [B, W, H]."""
        normed = self.hidden_norm(hidden)
        both = torch.cat((self.input_layernorm(embed), normed), dim=-1)
        attn_out = tap("attn_out", self.self_attn(both, tables, mask, cache))
        return self.feed_forward(self.after_attention(self.residual(embed, hidden, normed), attn_out), tap)

    @point
    def residual(self, embed: Tensor, hidden: Tensor, normed: Tensor) -> Tensor:
        """What goes round the attention."""
        return normed if self.norm_before_residual else hidden


class PEagle(nn.Module):
    """The drafter. Rows are committed tokens and masked placeholders; the caller builds them."""

    d2t: Tensor
    t2d: Tensor
    frequencies: Tensor

    def __init__(self, config: PEagleConfig):
        super().__init__()
        self.config = config
        taps_size = 3 if config.tap_inputs is None else len(config.tap_inputs)
        fused_size = taps_size * config.target_hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, fused_size))
        self.fc = nn.Linear(fused_size, config.hidden_size, bias=False)
        self.midlayer = FusionLayer(config)
        self.layers = nn.ModuleDict({str(l): PlainLayer(config, l) for l in range(1, config.num_layers)})
        self.norm = RMSNorm(config.hidden_size, config.eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        self.register_buffer("t2d", torch.ones(config.vocab_size, dtype=torch.bool))
        frequencies, self.rope_scale = schedule(config.rope, config.head_dim)
        self.register_buffer("frequencies", frequencies, persistent=False)

    @classmethod
    def load(cls, checkpoint: str | Path, dtype: torch.dtype = torch.float32) -> PEagle:
        """Read config and weights; floating parameters in `dtype`.

        Raises:
            UsageError: a tensor is missing, surplus or of the wrong shape.
        """
        config = PEagleConfig.read(checkpoint)
        with torch.device("meta"):  # its sizes are compared with the files before they take memory
            model = cls(config)
        optional = ("d2t", "t2d") if model.config.draft_vocab_size == model.config.vocab_size else ("t2d",)
        state = read_state(Path(checkpoint), model.state_dict(), optional=optional)
        model = cls(config)
        model.load_state_dict(state, strict=False)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        return model.eval()

    @point
    def fuse(self, taps: Tensor) -> Tensor:
        """Concatenated taps [..., T*H] to the fused hidden [..., H]."""
        return self.fc(taps)

    @point
    def tables(self, positions: Tensor) -> Tables:
        """cos and sin [B, W, 1, D/2] in float32."""
        return tables(positions, self.frequencies, self.rope_scale)

    def trunk(
        self,
        input_ids: Tensor,
        hidden: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: KVCache | None = None,
        tap: Callable[[int], LayerTap] = lambda layer: untapped,
    ) -> Tensor:
        """Rows to the residual stream after the last layer.

        Args:
            input_ids: [B, W]; placeholder id on masked rows.
            hidden: [B, W, H], fused.
            positions: [B, W], absolute.
            mask: bool [B, 1, W, S], True where a row may attend.
            cache: keys and values before these rows; None attends among the rows alone.
            tap: layer number to that layer's tap.
        """
        tables = self.tables(positions)
        x = self.midlayer.fusion(self.embed_tokens(input_ids), hidden, tables, mask, cache, tap(0))
        for number, layer in self.layers.items():
            x = layer(x, tables, mask, cache, tap(int(number)))
        return x

    def forward(
        self, input_ids: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor, cache: KVCache | None = None
    ) -> Tensor:
        """Rows to draft logits [B, W, VD]; arguments as in `trunk`."""
        return self.lm_head(self.norm(self.trunk(input_ids, hidden, positions, mask, cache)))

    @point
    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Draft-vocabulary ids to target ids: `d2t` is an offset (SafeAILab/EAGLE, cnets.py)."""
        return draft_ids + self.d2t[draft_ids]
