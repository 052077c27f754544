"""The speculative loop with a DFlash drafter: K drafts out of a block of masks, in one pass.

A round writes the keys and values of C context rows, whose taps the target's last pass left; behind them stand the
block's rows, the last emitted token and K masks. All of the block is dropped when the round commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

import torch
from torch import Tensor

from parity.references.dflash import DFlash
from parity.references.dflash_config import check_layers
from parity.references.drafter_layers import LayerTap
from parity.references.loop import SpeculativeLoop, T
from parity.references.points import point


class BlockLoop(SpeculativeLoop[T, DFlash], Generic[T]):
    """gpt-oss with a DFlash drafter."""

    def __init__(self, target: T, drafter: DFlash, k: int | Sequence[int], max_positions: int | None = None):
        check_layers(drafter.config, target.config.num_hidden_layers)
        super().__init__(target, drafter, k, max_positions)

    @point
    @torch.no_grad()
    def prefill_drafter(self, prompt: Tensor) -> None:
        """Context rows of the prompt but its last, which the first round has."""
        rows = len(prompt) - 1
        self.context(self.taps(0, rows), *self.places(rows, 0))
        self.state.draft_length = rows

    @point
    @torch.no_grad()
    def draft(self) -> Tensor:
        """C context rows, then the block: K ids [K]."""
        rows, block = len(self.state.pending_taps), self.k + 1
        positions, slots = self.catch_up(block)
        ids = self.tap("drafter.input_ids", self.ids(block))
        self.state.cache.start = int(slots[rows])

        def layer_tap(layer: int) -> LayerTap:
            return lambda part, value: self.tap(f"drafter.layers.{layer}.{part}", value[0])[None]

        mask = self.mask(slots[rows:], rows)[None, None]
        stream = self.drafter.trunk(ids[None], positions[None, rows:], mask, self.state.cache, layer_tap)[0]
        hidden = self.tap("drafter.pre_head_hidden", self.drafter.norm(self.predicting(stream, 1)))
        logits = self.tap("drafter.logits", self.drafter.lm_head(hidden))
        return self.tap("drafter.draft_tokens", self.drafter.to_target(self.drafted_columns(logits, 0)))

    @point
    @torch.no_grad()
    def keep_up(self) -> None:
        """The context rows alone."""
        self.catch_up(0)

    def catch_up(self, block: int) -> tuple[Tensor, Tensor]:
        """C context rows in front of a block: positions and slots of all [C + block]."""
        taps = self.state.pending_taps
        positions, slots = self.places(len(taps), block)
        self.context(taps, positions[: len(taps)], slots[: len(taps)])
        self.state.draft_length += len(taps)
        return positions, slots

    def places(self, context: int, block: int) -> tuple[Tensor, Tensor]:
        """Positions and cache slots of a pass' rows [C + K + 1]."""
        return (
            self.tap("drafter.positions", self.positions(context, block)),
            self.tap("drafter.slots", self.slots(context, block)),
        )

    @point
    def context(self, taps: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Write the rows of taps [C, T*H] to every layer's cache."""
        fused = self.tap("drafter.fc_out", self.drafter.fuse(self.tap("drafter.taps", taps)))
        self.state.cache.start = int(slots[0])
        self.drafter.remember(self.drafter.context(fused)[None], positions[None], self.state.cache)

    @point
    def ids(self, block: int) -> Tensor:
        """The last emitted token, then masks [K + 1]."""
        masks = torch.full((block - 1,), self.drafter.config.mask_id)
        return torch.cat((torch.tensor(self.state.emitted[-1:]), masks))

    @point
    def mask(self, slots: Tensor, committed: int) -> Tensor:
        """Every row of the block sees all context and all of the block: bool [K + 1, S]."""
        return torch.ones(len(slots), int(slots[0]) + len(slots), dtype=torch.bool)

    @point
    def predicting(self, stream: Tensor, known: int) -> Tensor:
        """The K rows that draft: the masks', behind those of known tokens."""
        return stream[known:]
