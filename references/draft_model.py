"""A small draft model in plain PyTorch, and its loop: an ordinary Llama that knows the target's tokens alone.

It runs over the prompt as the target does, each row a token at its own position. A round feeds it the tokens it has not
run over, then each draft but the last. Rows of accepted drafts stay in its cache, those of rejected ones are dropped.
Where all K drafts were accepted, the last of them was never fed: the next round feeds it before the bonus token.

Parameter names are the hub's tensor names without the leading `model.`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, cast

import torch
from torch import Tensor, nn

from parity.references.chain import StepLoop
from parity.references.checkpoint import read_state
from parity.references.drafter_config import DraftModelConfig
from parity.references.drafter_layers import KVCache, LayerTap, PlainLayer, RMSNorm, Tables, untapped
from parity.references.loop import T
from parity.references.points import point
from parity.references.rope import schedule, tables


class DraftModel(nn.Module):
    """A Llama: embedding, layers, norm, head."""

    frequencies: Tensor

    def __init__(self, config: DraftModelConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(PlainLayer(config, number) for number in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        frequencies, self.rope_scale = schedule(config.rope, config.head_dim)
        self.register_buffer("frequencies", frequencies, persistent=False)

    @classmethod
    def load(cls, checkpoint: str | Path, dtype: torch.dtype = torch.float32) -> DraftModel:
        """Read config and weights; floating parameters in `dtype`.

        Raises:
            UsageError: a tensor is missing, surplus or of the wrong shape.
        """
        config = DraftModelConfig.read(checkpoint)
        with torch.device("meta"):  # its sizes are compared with the files before they take memory
            model = cls(config)
        head, embeddings = "lm_head.weight", "embed_tokens.weight"
        optional = (head,) if config.tied else ()
        state = read_state(Path(checkpoint), model.state_dict(), optional, {"model.": ""})
        if config.tied:
            state[head] = state[embeddings].clone()
        model = cls(config)
        model.load_state_dict(state)
        return model.to(dtype).eval()

    @property
    def stack(self) -> list[PlainLayer]:
        """Its layers in order."""
        return cast("list[PlainLayer]", list(self.layers))

    @point
    def tables(self, positions: Tensor) -> Tables:
        """cos and sin [B, W, 1, D/2] in float32."""
        return tables(positions, self.frequencies, self.rope_scale)

    @point
    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Its vocabulary is the target's."""
        return draft_ids

    def trunk(
        self,
        input_ids: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: KVCache | None = None,
        tap: Callable[[int], LayerTap] = lambda layer: untapped,
    ) -> Tensor:
        """Rows to the residual stream after the last layer [B, W, H].

        Args:
            input_ids: [B, W], each token at its own position.
            positions: [B, W], absolute.
            mask: bool [B, 1, W, S], True where a row may attend.
            cache: keys and values before these rows; None attends among the rows alone.
            tap: layer number to that layer's tap.
        """
        turns = self.tables(positions)
        x: Tensor = self.embed_tokens(input_ids)
        for number, layer in enumerate(self.layers):
            x = layer(x, turns, mask, cache, tap(number))
        return x


class DraftModelLoop(StepLoop[T, DraftModel], Generic[T]):
    """gpt-oss with a draft model; there are no taps."""

    @point
    @torch.no_grad()
    def prefill_drafter(self, prompt: Tensor) -> None:
        """The draft model over the whole prompt."""
        self.rows(prompt, self.taps(0, len(prompt)), behind=0)
        self.state.draft_length = len(prompt)

    @point
    def draft(self) -> Tensor:
        """C committed rows, then K-1 rows of drafts: K ids [K]."""
        drafts: Tensor = super().draft()
        self.state.chained = tuple(drafts[:-1].tolist())
        return drafts

    def rows(self, committed: Tensor, taps: Tensor, behind: int) -> Tensor:
        """A round's first pass: the residual stream [C, H]."""
        return self.run_rows(self.ids(committed, behind), None, 0, len(committed), behind)

    @point
    def recycled(self, stream: Tensor) -> Tensor | None:
        """Rows take tokens alone."""
        return None

    @point
    def commit(self, length: int) -> None:
        """Keep the rows of the drafts that were emitted as well, but none of the last emitted token."""
        state = self.state
        same = [mine == its for mine, its in zip(state.chained, state.emitted[-length:-1], strict=False)]
        state.draft_length += same.index(False) if False in same else len(same)
        state.chained = ()
        super().commit(length)
        state.pending_taps = self.taps(0, state.length + 1 - state.draft_length)
