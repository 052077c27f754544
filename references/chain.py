"""The greedy speculative loop with an EAGLE-3 drafter: K drafts in K passes, each one row behind the one before.

A round re-feeds the C committed rows with their true taps; the last of them drafts first. Each of the K-1 chain rows
behind it pairs the draft before it with the residual stream that the row before it left, one position further on.
Chain rows write keys and values that only this round reads: they are dropped when the round commits.
"""

from __future__ import annotations

from typing import Generic

import torch

from parity.references.eagle3 import Eagle3
from parity.references.loop import SpeculativeLoop, T
from parity.references.points import point


class ChainLoop(SpeculativeLoop[T, Eagle3], Generic[T]):
    """gpt-oss with an EAGLE-3 drafter.

    The stages are those of `SpeculativeLoop`; the rows of the K passes stand in the order in which they run:
    W = C + K - 1, the committed ones, then the chain rows. On a chain row `drafter.fc_out` is the recycled hidden.
    """

    @point
    @torch.no_grad()
    def prefill_drafter(self, prompt: torch.Tensor) -> None:
        """The drafter over the prompt, whose tokens are one ahead of their taps."""
        taps = self.tap("drafter.taps", self.taps(0, len(prompt) - 1))
        self._pass(prompt[1:], self.drafter.fuse(taps), first=0, total=len(prompt) - 1)
        self.state.draft_length = len(prompt) - 1

    @point
    @torch.no_grad()
    def draft(self) -> torch.Tensor:
        """C committed rows, then K-1 chain rows: K ids [K]."""
        ids = torch.tensor(self.state.emitted[-len(self.state.pending_taps) :])
        committed = len(ids)
        hidden = self.drafter.fuse(self.tap("drafter.taps", self.state.pending_taps))
        drafts: list[torch.Tensor] = []
        first = 0
        for step in range(self.k):
            stream = self._pass(ids, hidden, first, total=committed + self.k - 1)
            first += len(ids)
            ids = self._choice(stream[-1:], step)
            hidden = self.recycled(stream)
            drafts.append(ids)
        self.state.draft_length += committed
        return torch.cat(drafts)

    @point
    def recycled(self, stream: torch.Tensor) -> torch.Tensor:
        """What the next chain row takes for a hidden [1, H], of the last row's stream."""
        return self.drafter.recycled(stream[-1:])

    def _choice(self, stream: torch.Tensor, step: int) -> torch.Tensor:
        """The draft of one step [1], a target id, from its row's stream [1, H]."""
        hidden = self.state.tap.rows("drafter.pre_head_hidden", self.drafter.norm(stream), step, self.k)
        logits = self.state.tap.rows("drafter.logits", self.drafter.lm_head(hidden), step, self.k)
        return self.state.tap.rows("drafter.draft_tokens", self.drafter.to_target(self.greedy(logits)), step, self.k)

    def _pass(self, ids: torch.Tensor, hidden: torch.Tensor, first: int, total: int) -> torch.Tensor:
        """Run rows `first` … of this round's `total` through the layer: the residual stream [n, H]."""

        def tap(part: str, value: torch.Tensor) -> torch.Tensor:
            return self.state.tap.rows(f"drafter.{part}", value, first, total)

        ids = tap("input_ids", ids)
        positions = tap("positions", self.positions(first + len(ids), 0)[first:])
        slots = tap("slots", self.slots(first + len(ids), 0)[first:])
        hidden = tap("fc_out", hidden)
        self.state.cache.start = int(slots[0])
        mask = self.mask(slots, len(ids))[None, None]
        return self.drafter.trunk(
            ids[None],
            hidden[None],
            positions[None],
            mask,
            self.state.cache,
            lambda part, value: tap(f"layers.0.{part}", value[0])[None],
        )[0]
