"""The greedy speculative loop with a P-EAGLE drafter: K drafts in one pass.

A round feeds the C committed rows with their true taps and K-1 masked ones behind them, which carry a placeholder token
and `mask_hidden`. The last committed row and the masked ones draft.
"""

from __future__ import annotations

from typing import Generic

import torch
from torch import Tensor

from parity.references.drafter_layers import LayerTap
from parity.references.loop import SpeculativeLoop, T
from parity.references.peagle import PEagle
from parity.references.points import point


class ParallelLoop(SpeculativeLoop[T, PEagle], Generic[T]):
    """gpt-oss with a P-EAGLE drafter."""

    @point
    def prefill_drafter(self, prompt: Tensor) -> None:
        """The drafter over the prompt, whose tokens are one ahead of their taps."""
        self.rows(prompt[1:], self.taps(0, len(prompt) - 1), masked=0)
        self.state.draft_length = len(prompt) - 1

    @point
    def draft(self) -> Tensor:
        """C committed rows, fed again with their true taps, and K-1 placeholders: K ids [K]."""
        committed = torch.tensor(self.state.emitted[-len(self.state.pending_taps) :])
        rows = self.rows(committed, self.state.pending_taps, masked=self.k - 1)
        self.state.draft_length += len(committed)
        hidden = self.tap("drafter.pre_head_hidden", self.drafter.norm(self.predicting(rows, len(committed))))
        logits = self.tap("drafter.logits", self.drafter.lm_head(hidden))
        return self.tap("drafter.draft_tokens", self.drafter.to_target(self.greedy(logits)))

    @point
    def predicting(self, rows: Tensor, committed: int) -> Tensor:
        """The K rows that draft: the last committed one and the masked ones."""
        return rows[committed - 1 :]

    @torch.no_grad()
    def rows(self, committed: Tensor, taps: Tensor, masked: int) -> Tensor:
        """Run W rows through the drafter's trunk: the residual stream [W, H]."""
        tap = self.tap
        taps = tap("drafter.taps", taps)
        ids = tap("drafter.input_ids", self.ids(committed, masked))
        positions = tap("drafter.positions", self.positions(len(committed), masked))
        slots = tap("drafter.slots", self.slots(len(committed), masked))
        hidden = tap("drafter.fc_out", self.fused(taps, masked))
        cache = self.state.cache
        cache.start = int(slots[0])

        def layer_tap(layer: int) -> LayerTap:
            return lambda part, value: tap(f"drafter.layers.{layer}.{part}", value[0])[None]

        mask = self.mask(slots, len(committed))[None, None]
        return self.drafter.trunk(ids[None], hidden[None], positions[None], mask, cache, layer_tap)[0]

    @point
    def ids(self, committed: Tensor, masked: int) -> Tensor:
        """The committed ids [C], then a placeholder for each masked row."""
        return torch.cat((committed, committed.new_full((masked,), self.drafter.config.placeholder_id)))

    @point
    def fused(self, taps: Tensor, masked: int) -> Tensor:
        """Taps [C, T*H] and `mask_hidden` on the masked rows, through `fc`: [W, H]."""
        return self.drafter.fuse(torch.cat((taps, self.drafter.mask_hidden[0].expand(masked, -1))))
