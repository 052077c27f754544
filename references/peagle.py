"""P-EAGLE drafter in plain PyTorch: K drafts in one forward (arXiv 2602.01469).

Parameter names are the hub's tensor names, so that a checkpoint is a state dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Self, cast

import torch
from torch import nn

from parity.errors import UsageError
from parity.references.checkpoint import read_state
from parity.references.drafter_config import FusedConfig, PEagleConfig
from parity.references.drafter_layers import FusionLayer, KVCache, LayerTap, PlainLayer, RMSNorm, Tables, untapped
from parity.references.points import point
from parity.references.rope import schedule, tables

EMBEDDINGS = "embed_tokens.weight"


class Drafter(nn.Module):
    """What P-EAGLE and EAGLE-3 drafters have alike: embedding, `fc`, layers, norm, head and the map of ids."""

    layouts: ClassVar[Mapping[str, str]] = MappingProxyType({"model.": "", "layers.0.": "midlayer."})
    """Beginnings of names in files of another layout, to this one's."""

    d2t: torch.Tensor
    t2d: torch.Tensor
    frequencies: torch.Tensor

    def __init__(self, config: FusedConfig):
        super().__init__()
        self.config = config
        taps = 3 if config.tap_inputs is None else len(config.tap_inputs)
        self.fused_size = taps * config.target_hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(self.fused_size, config.eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(config.target_hidden_size, config.eps) for _ in range(taps))
        self.fc = nn.Linear(self.fused_size, config.hidden_size, bias=False)
        self.midlayer = self.fusion_layer(config)
        self.layers = nn.ModuleDict({str(number): PlainLayer(config, number) for number in range(1, config.num_layers)})
        self.norm = RMSNorm(config.hidden_size, config.eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        self.register_buffer("t2d", torch.ones(config.vocab_size, dtype=torch.bool))
        frequencies, self.rope_scale = schedule(config.rope, config.head_dim)
        self.register_buffer("frequencies", frequencies, persistent=False)

    @classmethod
    def read(
        cls, checkpoint: str | Path, config: FusedConfig, dtype: torch.dtype, embeddings: torch.Tensor | None = None
    ) -> Self:
        """Read the weights of a config's drafter; floating parameters in `dtype`.

        Args:
            embeddings: the target's [V, H], for a drafter whose file has none of its own.

        Raises:
            UsageError: a tensor is missing, surplus or of the wrong shape.
        """
        with torch.device("meta"):  # its sizes are compared with the files before they take memory
            model = cls(config)
        same = config.draft_vocab_size == config.vocab_size
        optional = ("t2d", *(["d2t"] if same else []), *([] if embeddings is None else [EMBEDDINGS]))
        state = read_state(Path(checkpoint), model.state_dict(), optional, cls.layouts)
        if embeddings is not None and EMBEDDINGS not in state:
            state[EMBEDDINGS] = model.shared(checkpoint, embeddings)
        model = cls(config)
        model.load_state_dict(state, strict=False)
        model.check(checkpoint, state)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        return model.eval()

    def shared(self, checkpoint: str | Path, embeddings: torch.Tensor) -> torch.Tensor:
        """The target's embeddings in place of the drafter's own.

        Raises:
            UsageError: they are of another shape.
        """
        if embeddings.shape != self.embed_tokens.weight.shape:
            own, theirs = tuple(self.embed_tokens.weight.shape), tuple(embeddings.shape)
            raise UsageError(f"{checkpoint}: no {EMBEDDINGS}, and the target's {theirs} do not fit {own}")
        return embeddings.detach().clone()

    def check(self, checkpoint: str | Path, state: Mapping[str, torch.Tensor]) -> None:
        """What else a kind of drafter asks of the tensors read, once they are in place."""

    @staticmethod
    def fusion_layer(config: FusedConfig) -> FusionLayer:
        """Layer 0."""
        return FusionLayer(config)

    @property
    def stack(self) -> list[PlainLayer]:
        """Its layers in order."""
        return [self.midlayer, *cast("Iterable[PlainLayer]", self.layers.values())]

    @point
    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        """Concatenated taps [..., T*H_t] to the fused hidden [..., H].

        `norm_before_fc` norms all of them as one row, `fc_norm` each tap with a weight of its own.
        """
        if self.config.norm_before_fc:
            taps = self.input_norm(taps)
        if self.config.fc_norm:
            parts = taps.chunk(len(self.fc_norm), dim=-1)
            taps = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: torch.Tensor = self.fc(taps)
        return fused

    @point
    def tables(self, positions: torch.Tensor) -> Tables:
        """cos and sin [B, W, 1, D/2] in float32."""
        return tables(positions, self.frequencies, self.rope_scale)

    @point
    def to_target(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Draft-vocabulary ids to target ids: `d2t` is an offset (SafeAILab/EAGLE, cnets.py)."""
        return draft_ids + self.d2t[draft_ids]

    def trunk(
        self,
        input_ids: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        cache: KVCache | None = None,
        tap: Callable[[int], LayerTap] = lambda layer: untapped,
    ) -> torch.Tensor:
        """Rows to the residual stream after the last layer.

        Args:
            input_ids: [B, W], target ids: the token behind each row's position; a placeholder on masked rows.
            hidden: [B, W, H], fused; on a chain row the stream as it left the last layer.
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


class PEagle(Drafter):
    """The drafter. Rows are committed tokens and masked placeholders; the caller builds them."""

    config: PEagleConfig

    def __init__(self, config: PEagleConfig):
        super().__init__(config)
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, self.fused_size))

    @classmethod
    def load(cls, checkpoint: str | Path, dtype: torch.dtype = torch.float32) -> PEagle:
        """Read config and weights; floating parameters in `dtype`.

        Raises:
            UsageError: a tensor is missing, surplus or of the wrong shape.
        """
        return cls.read(checkpoint, PEagleConfig.read(checkpoint), dtype)

    def forward(
        self,
        input_ids: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        cache: KVCache | None = None,
    ) -> torch.Tensor:
        """Rows to draft logits [B, W, VD]; arguments as in `trunk`."""
        logits: torch.Tensor = self.lm_head(self.norm(self.trunk(input_ids, hidden, positions, mask, cache)))
        return logits
