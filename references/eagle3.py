"""EAGLE-3 drafter in plain PyTorch: one fusion layer, run K times in a chain (arXiv 2503.01840).

The layer's parts are those of the P-EAGLE drafter's first layer; parameter names are the hub's tensor names, so that a
checkpoint is a state dict. What differs: `fc` meets the target's taps only, and a chain row takes the residual stream
of the row before it, as it left the layer (before the final norm), in place of a fused hidden.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from parity.errors import UsageError
from parity.references.checkpoint import read_state
from parity.references.drafter_config import Eagle3Config
from parity.references.peagle import Attention, FusionLayer, KVCache, LayerTap, RMSNorm, untapped
from parity.references.rope import schedule, tables


class ChainAttention(Attention):
    """P-EAGLE's attention, but for roundings in bfloat16: tables, products and sum of the rotation are each rounded.

    The official implementation does so (and Hugging Face's Llama). With the rotation in float32 and one rounding the two
    differ by up to 1.4 % of a row's largest draft logit in bfloat16; with this they agree bit for bit. float32 is the same.
    """

    def turn(self, q, k, cos, sin) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate queries [B, W, N, D] and keys [B, W, G, D], half-split."""
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        halves = (x.chunk(2, dim=-1) for x in (q, k))
        q, k = (torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1) for a, b in halves)
        return q, k


class Eagle3(nn.Module):
    """The drafter: rows of (token, hidden) to the residual stream, and from there to draft logits."""

    def __init__(self, config: Eagle3Config):
        super().__init__()
        self.config = config
        taps = 3 if config.tap_inputs is None else len(config.tap_inputs)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.fc = nn.Linear(taps * config.target_hidden_size, config.hidden_size, bias=False)
        self.midlayer = FusionLayer(config)
        self.midlayer.self_attn = ChainAttention(config, 0, 2 * config.hidden_size)
        self.norm = RMSNorm(config.hidden_size, config.eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        self.register_buffer("t2d", torch.ones(config.vocab_size, dtype=torch.bool))
        frequencies, self.rope_scale = schedule(config.rope, config.head_dim)
        self.register_buffer("frequencies", frequencies, persistent=False)

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
        config = Eagle3Config.read(checkpoint)
        with torch.device("meta"):  # its sizes are compared with the files before they take memory
            model = cls(config)
        same = model.config.draft_vocab_size == model.config.vocab_size
        optional = ("t2d", *(["d2t"] if same else []), *([] if embeddings is None else ["embed_tokens.weight"]))
        state = read_state(Path(checkpoint), model.state_dict(), optional=optional)
        if "embed_tokens.weight" not in state:
            state["embed_tokens.weight"] = model._shared(checkpoint, embeddings)
        model = cls(config)
        model.load_state_dict(state, strict=False)
        model._check_maps(checkpoint, "t2d" in state)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        return model.eval()

    def _shared(self, checkpoint: str | Path, embeddings: torch.Tensor) -> torch.Tensor:
        if embeddings.shape != self.embed_tokens.weight.shape:
            own, theirs = tuple(self.embed_tokens.weight.shape), tuple(embeddings.shape)
            raise UsageError(f"{checkpoint}: no embed_tokens.weight, and the target's {theirs} do not fit {own}")
        return embeddings.detach().clone()

    def _check_maps(self, checkpoint: str | Path, mask: bool) -> None:
        """`d2t` stays in the target's vocabulary and gives no id twice; `t2d`, where there is one, says the same."""
        ids = self.to_target(torch.arange(self.config.draft_vocab_size))
        if ids.min() < 0 or ids.max() >= self.config.vocab_size or len(ids.unique()) != len(ids):
            raise UsageError(f"{checkpoint}: d2t does not map the draft vocabulary one to one into the target's")
        if mask and not torch.equal(self.t2d.nonzero()[:, 0], ids.sort().values):
            raise UsageError(f"{checkpoint}: t2d does not mark the ids that d2t maps to")

    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        """Concatenated taps [..., T*H_t] to the fused hidden [..., H]; the target's rows only."""
        return self.fc(taps)

    def trunk(
        self, input_ids, hidden, positions, mask, cache: KVCache | None = None, tap: LayerTap = untapped
    ) -> torch.Tensor:
        """Rows to the residual stream after the layer [B, W, H], which the next chain row recycles.

        Args:
            input_ids: [B, W], target ids: the token behind each row's position.
            hidden: [B, W, H]: fused, or recycled as it left the layer.
            positions: [B, W], absolute.
            mask: bool [B, 1, W, S], True where a row may attend.
            cache: keys and values before these rows; None attends among the rows alone.
            tap: the layer's tap.
        """
        turns = tables(positions, self.frequencies, self.rope_scale)
        return self.midlayer.fusion(self.embed_tokens(input_ids), hidden, turns, mask, cache, tap)

    def to_target(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Draft-vocabulary ids to target ids: `d2t` is an offset (SafeAILab/EAGLE, cnets.py)."""
        return draft_ids + self.d2t[draft_ids]
