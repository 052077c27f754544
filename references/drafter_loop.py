"""The speculative loop with a drafter that runs over rows: what families with weights have alike.

A round's rows are the C committed ones, fed again with their true taps, and K-1 behind them, which no token was emitted
for yet: P-EAGLE's run in the same pass, EAGLE-3's one by one.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from parity.references.drafter_layers import LayerTap
from parity.references.loop import SpeculativeLoop, T
from parity.references.points import point

Weighted = TypeVar("Weighted", bound=Any)
"""A drafter with weights."""


class DrafterLoop(SpeculativeLoop[T, Weighted], Generic[T, Weighted]):
    """gpt-oss with a drafter whose rows are tokens, or pairs of a token with a hidden."""

    @point
    @torch.no_grad()
    def prefill_drafter(self, prompt: Tensor) -> None:
        """The drafter over the prompt, whose tokens are one ahead of their taps."""
        self.rows(prompt[1:], self.taps(0, len(prompt) - 1), behind=0)
        self.state.draft_length = len(prompt) - 1

    def pending(self) -> Tensor:
        """The ids [C] that the drafter has not run over: the newest ones."""
        known = [*self.state.prompt.tolist(), *self.state.emitted]
        return torch.tensor(known[-len(self.state.pending_taps) :])

    @point
    @torch.no_grad()
    def keep_up(self) -> None:
        """The committed rows alone."""
        ids = self.pending()
        self.rows(ids, self.state.pending_taps, behind=0)
        self.state.draft_length += len(ids)

    @torch.no_grad()
    def rows(self, committed: Tensor, taps: Tensor, behind: int) -> Tensor:
        """A round's first pass, of which `behind` rows do not carry a committed token: the residual stream [n, H]."""
        taps = self.tap("drafter.taps", taps)
        return self.run_rows(self.ids(committed, behind), self.fused(taps, behind), 0, len(committed), behind)

    def run_rows(self, ids: Tensor, hidden: Tensor | None, first: int, committed: int, behind: int) -> Tensor:
        """Run rows `first` … of a round's W = C + `behind` through the layers: the residual stream [n, H].

        A drafter that takes tokens alone has no hidden.
        """
        these = slice(first, first + len(ids))

        def tap(part: str, value: Tensor) -> Tensor:
            return self.tap(f"drafter.{part}", value, first, committed + behind)

        def layer_tap(layer: int) -> LayerTap:
            return lambda part, value: tap(f"layers.{layer}.{part}", value[0])[None]

        ids = tap("input_ids", ids)
        positions = tap("positions", self.positions(committed, behind)[these])
        slots = tap("slots", self.slots(committed, behind)[these])
        inputs = (ids, positions) if hidden is None else (ids, tap("fc_out", hidden), positions)
        cache = self.state.cache
        cache.start = int(slots[0])
        mask = self.mask(slots, committed)[None, None]
        stream: Tensor = self.drafter.trunk(*(each[None] for each in inputs), mask, cache, layer_tap)
        return stream[0]

    def choose(self, stream: Tensor, first: int, total: int) -> Tensor:
        """Drafts `first` … of a round's `total` from their rows' stream [n, H]: target ids [n]."""

        def tap(part: str, value: Tensor) -> Tensor:
            return self.tap(f"drafter.{part}", value, first, total)

        hidden = tap("pre_head_hidden", self.drafter.norm(stream))
        logits = tap("logits", self.drafter.lm_head(hidden))
        return tap("draft_tokens", self.drafter.to_target(self.drafted_columns(logits, first)))

    @point
    def predicting(self, stream: Tensor, committed: int) -> Tensor:
        """The rows of a pass that draft: the last committed one and those behind it."""
        return stream[committed - 1 :]

    @point
    def ids(self, committed: Tensor, behind: int) -> Tensor:
        """The ids of a round's first pass: the committed ones [C]."""
        return committed

    @point
    def fused(self, taps: Tensor, behind: int) -> Tensor:
        """The hiddens of a round's first pass: the taps [C, T*H] through `fc`."""
        hidden: Tensor = self.drafter.fuse(taps)
        return hidden
