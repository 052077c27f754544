"""DFlash drafter in plain PyTorch: a block of masks, denoised in one forward (arXiv 2602.06036).

With h the target's streams behind the chosen layers, side by side, each position of the context is
c = norm(fc h), and every layer's keys and values of it are W_k c and W_v c, with W_k and W_v of that layer. The block
is the last emitted token and K masks, embedded by the target's table:

    x' = x + W_o softmax(q [k_c; k_x]^T / sqrt(D)) [v_c; v_x],    q, k_x, v_x from norm(x)
    x  = x' + mlp(norm(x'))

q and k are normed by head, then turned by their positions. No row of the block is hidden from another. The target's
head reads a mask's row, and its token is the draft at the row's own position.

Parameter names are the hub's tensor names, so that a checkpoint is a state dict.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parity.errors import UsageError
from parity.references.checkpoint import read_state
from parity.references.dflash_config import DFlashConfig
from parity.references.drafter_layers import Attention, KVCache, LayerTap, PlainLayer, RMSNorm, Tables, untapped
from parity.references.points import point
from parity.references.rope import schedule, tables


class BlockAttention(Attention):
    """GQA whose queries and keys are normed by head; the block's rows and the context's share the projections."""

    def __init__(self, config: DFlashConfig, layer: int):
        super().__init__(config, layer, config.hidden_size)
        self.q_norm = RMSNorm(config.head_dim, config.eps)
        self.k_norm = RMSNorm(config.head_dim, config.eps)

    @point
    def queries(self, x: Tensor, turns: Tables) -> Tensor:
        """Rows [B, W, H] to turned queries [B, N, W, D]."""
        rows = self.q_norm(self.q_proj(x).view(*x.shape[:2], self.config.num_heads, -1))
        return self.turn(rows, rows, *turns)[0].transpose(1, 2)

    @point
    def keys(self, x: Tensor, turns: Tables) -> tuple[Tensor, Tensor]:
        """Rows [B, W, H] to turned keys and to values [B, G, W, D]."""
        shape = (*x.shape[:2], self.config.num_kv_heads, -1)
        rows = self.k_norm(self.k_proj(x).view(shape))
        return self.turn(rows, rows, *turns)[1].transpose(1, 2), self.v_proj(x).view(shape).transpose(1, 2)

    def forward(self, x: Tensor, tables: Tables, mask: Tensor, cache: KVCache | None, tap: LayerTap) -> Tensor:
        """[B, W, H] of the block and mask [B, 1, W, S] to [B, W, H]."""
        k, v = self.keys(x, tables)
        if cache is not None:
            k, v = self.remember(k, v, cache)
        mixed = self.attend(self.queries(x, tables), k, v, mask)
        out: Tensor = self.o_proj(mixed.reshape(*x.shape[:2], -1))
        return out


class BlockLayer(PlainLayer):
    """A Qwen3 layer over the block."""

    self_attn: BlockAttention

    def __init__(self, config: DFlashConfig, layer: int):
        super().__init__(config, layer)
        self.self_attn = BlockAttention(config, layer)


class Shared(nn.Module):
    """A table [V, H] of the target's, which no drafter's checkpoint has, and what it is applied by."""

    weight: Tensor

    def __init__(self, apply: Callable[[Tensor, Tensor], Tensor], config: DFlashConfig):
        super().__init__()
        self.apply_to = apply
        self.register_buffer("weight", torch.empty(config.vocab_size, config.hidden_size), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Ids [...] or hiddens [..., H] to what the table makes of them."""
        return self.apply_to(x, self.weight)


class DFlash(nn.Module):
    """The drafter; embeddings and head are the target's."""

    frequencies: Tensor

    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.config = config
        assert config.tap_inputs is not None
        self.fc = nn.Linear(len(config.tap_inputs) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.eps)
        self.layers = nn.ModuleList(BlockLayer(config, number) for number in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.eps)
        frequencies, self.rope_scale = schedule(config.rope, config.head_dim)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.embed_tokens, self.lm_head = Shared(F.embedding, config), Shared(F.linear, config)

    @property
    def stack(self) -> list[PlainLayer]:
        """Its layers in order."""
        return cast("list[PlainLayer]", list(self.layers))

    @classmethod
    def load(
        cls, checkpoint: str | Path, embeddings: Tensor, head: Tensor, dtype: torch.dtype = torch.float32
    ) -> DFlash:
        """Read config and weights; floating parameters in `dtype`.

        Args:
            embeddings, head: the target's, [V, H] each.

        Raises:
            UsageError: a tensor is missing, surplus or of the wrong shape.
        """
        config = DFlashConfig.read(checkpoint)
        own, theirs = (config.vocab_size, config.hidden_size), tuple(embeddings.shape)
        if own != theirs:
            raise UsageError(f"{checkpoint}: a drafter of [V, H] = {own}; the target's embeddings are {theirs}")
        with torch.device("meta"):  # its sizes are compared with the files before they take memory
            model = cls(config)
        state = read_state(Path(checkpoint), model.state_dict())
        model = cls(config)
        model.load_state_dict(state)
        model.share(embeddings, head)
        return model.to(dtype).eval()

    def to(self, dtype: torch.dtype) -> DFlash:  # type: ignore[override]
        """Parameters in another dtype; the frequencies stay in float64."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)
        self.share(self.embed_tokens.weight.to(dtype), self.lm_head.weight.to(dtype))
        return self

    def share(self, embeddings: Tensor, head: Tensor) -> None:
        """Take the target's tables [V, H]."""
        self.embed_tokens.weight, self.lm_head.weight = embeddings.detach(), head.detach()

    @point
    def fuse(self, taps: Tensor) -> Tensor:
        """Concatenated taps [..., T*H] to [..., H]."""
        fused: Tensor = self.fc(taps)
        return fused

    @point
    def context(self, fused: Tensor) -> Tensor:
        """Fused taps [..., H] to what the layers project [..., H]."""
        normed: Tensor = self.hidden_norm(fused)
        return normed

    @point
    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Its vocabulary is the target's."""
        return draft_ids

    @point
    def tables(self, positions: Tensor) -> Tables:
        """cos and sin [B, W, 1, D/2] in float32."""
        return tables(positions, self.frequencies, self.rope_scale)

    def remember(self, context: Tensor, positions: Tensor, cache: KVCache) -> None:
        """Write every layer's keys and values of context rows [B, C, H] from slot `cache.start` on."""
        turns = self.tables(positions)
        for layer in self.stack:
            assert isinstance(layer, BlockLayer)
            layer.self_attn.remember(*layer.self_attn.keys(context, turns), cache)

    @point
    def trunk(
        self,
        input_ids: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: KVCache | None = None,
        tap: Callable[[int], LayerTap] = lambda layer: untapped,
    ) -> Tensor:
        """The block's rows to the residual stream after the last layer [B, W, H].

        Args:
            input_ids: [B, W]; the last emitted token, then masks.
            positions: [B, W], absolute.
            mask: bool [B, 1, W, S], True where a row may attend.
            cache: keys and values of the context; None attends among the rows alone.
            tap: layer number to that layer's tap.
        """
        turns = self.tables(positions)
        x: Tensor = self.embed_tokens(input_ids)
        for number, layer in enumerate(self.layers):
            x = layer(x, turns, mask, cache, tap(number))
        return x
