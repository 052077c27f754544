"""The greedy speculative loop with an EAGLE-3 drafter: K drafts in K passes, each one row behind the one before.

A round re-feeds the C committed rows with their true taps; the last of them drafts first. Each of the K-1 chain rows
behind it pairs the draft before it with the residual stream that the row before it left, one position further on.
Chain rows write keys and values that only this round reads: they are dropped when the round commits.
"""

from __future__ import annotations

import torch

from parity.references.loop import SpeculativeLoop


class ChainLoop(SpeculativeLoop):
    """gpt-oss with an EAGLE-3 drafter.

    The stages are those of `SpeculativeLoop`; the rows of the K passes stand in the order in which they run:
    W = C + K - 1, the committed ones, then the chain rows. On a chain row `drafter.fc_out` is the recycled hidden.
    """

    @torch.no_grad()
    def _prefill_drafter(self, prompt: torch.Tensor) -> None:
        taps = self.tap("drafter.taps", self._taps(0, len(prompt) - 1))
        self._pass(prompt[1:], self.drafter.fuse(taps), first=0, total=len(prompt) - 1)
        self.draft_length = len(prompt) - 1

    @torch.no_grad()
    def _draft(self) -> torch.Tensor:
        """C committed rows, then K-1 chain rows: K ids [K]."""
        ids = torch.tensor(self.emitted[-len(self.pending_taps) :])
        committed = len(ids)
        hidden = self.drafter.fuse(self.tap("drafter.taps", self.pending_taps))
        drafts, first = [], 0
        for step in range(self.k):
            stream = self._pass(ids, hidden, first, total=committed + self.k - 1)
            first += len(ids)
            ids = self._choice(stream[-1:], step)
            hidden = self._recycled(stream)
            drafts.append(ids)
        self.draft_length += committed
        return torch.cat(drafts)

    def _recycled(self, stream: torch.Tensor) -> torch.Tensor:
        """What the next chain row takes for a hidden [1, H]: the last row's stream, not yet normed."""
        return stream[-1:]

    def _choice(self, stream: torch.Tensor, step: int) -> torch.Tensor:
        """The draft of one step [1], a target id, from its row's stream [1, H]."""
        hidden = self.tap.rows("drafter.pre_head_hidden", self.drafter.norm(stream), step, self.k)
        logits = self.tap.rows("drafter.logits", self.drafter.lm_head(hidden), step, self.k)
        return self.tap.rows("drafter.draft_tokens", self.drafter.to_target(self._greedy(logits)), step, self.k)

    def _pass(self, ids: torch.Tensor, hidden: torch.Tensor, first: int, total: int) -> torch.Tensor:
        """Run rows `first` … of this round's `total` through the layer: the residual stream [n, H]."""

        def tap(part: str, value: torch.Tensor) -> torch.Tensor:
            return self.tap.rows(f"drafter.{part}", value, first, total)

        ids = tap("input_ids", ids)
        positions = tap("positions", self._positions(first + len(ids), 0)[first:])
        slots = tap("slots", self._slots(first + len(ids), 0)[first:])
        hidden = tap("fc_out", hidden)
        self.cache.start = int(slots[0])
        mask = self._mask(slots, len(ids))[None, None]
        return self.drafter.trunk(
            ids[None],
            hidden[None],
            positions[None],
            mask,
            self.cache,
            lambda part, value: tap(f"layers.0.{part}", value[0])[None],
        )[0]
