"""The greedy speculative loop with a drafter that runs K passes a round, each one row behind the one before.

A round runs over the C committed rows first; the last of them drafts. Each of the K-1 chain rows behind it carries the
draft before it, one position further on. With EAGLE-3 the committed rows have true taps, and a chain row takes the
residual stream that the row before it left. Its keys and values only this round reads: they are dropped when the round
commits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from parity.references.drafter_layers import LayerTap
from parity.references.eagle3 import Eagle3
from parity.references.loop import SpeculativeLoop, T
from parity.references.points import point

S = TypeVar("S", bound=Any)
"""A drafter that runs step by step."""


class StepLoop(SpeculativeLoop[T, S], ABC, Generic[T, S]):
    """gpt-oss with a drafter that runs step by step.

    The stages are those of `SpeculativeLoop`; the rows of the K passes stand in the order in which they run:
    W = C + K - 1, the committed ones, then the chain rows.
    """

    @abstractmethod
    def committed(self) -> tuple[Tensor, Tensor | None]:
        """The ids [C] that the drafter has not run over, and the hidden of a drafter that is fed with one [C, H]."""

    @abstractmethod
    def trunk(
        self, ids: Tensor, hidden: Tensor | None, positions: Tensor, mask: Tensor, tap: Callable[[int], LayerTap]
    ) -> Tensor:
        """Rows to their residual stream [1, n, H]; what the drafter's own `trunk` takes."""

    @point
    @torch.no_grad()
    def draft(self) -> Tensor:
        """C committed rows, then K-1 chain rows: K ids [K]."""
        ids, hidden = self.committed()
        committed = len(ids)
        drafts: list[Tensor] = []
        first = 0
        for step in range(self.k):
            stream = self._pass(ids, hidden, first, total=committed + self.k - 1)
            first += len(ids)
            ids = self._choice(stream[-1:], step)
            hidden = None if hidden is None else self.recycled(stream)
            drafts.append(ids)
        self.state.draft_length += committed
        return torch.cat(drafts)

    @point
    def recycled(self, stream: Tensor) -> Tensor:
        """What the next chain row takes for a hidden [1, H]: the last row's stream, not yet normed."""
        return stream[-1:]

    def _choice(self, stream: Tensor, step: int) -> Tensor:
        """The draft of one step [1], a target id, from its row's stream [1, H]."""
        hidden = self.state.tap.rows("drafter.pre_head_hidden", self.drafter.norm(stream), step, self.k)
        logits = self.state.tap.rows("drafter.logits", self.drafter.lm_head(hidden), step, self.k)
        return self.state.tap.rows("drafter.draft_tokens", self.drafter.to_target(self.greedy(logits)), step, self.k)

    def _pass(self, ids: Tensor, hidden: Tensor | None, first: int, total: int) -> Tensor:
        """Run rows `first` … of this round's `total` through the layers: the residual stream [n, H]."""

        def tap(part: str, value: Tensor) -> Tensor:
            return self.state.tap.rows(f"drafter.{part}", value, first, total)

        def layer_tap(layer: int) -> LayerTap:
            return lambda part, value: tap(f"layers.{layer}.{part}", value[0])[None]

        ids = tap("input_ids", ids)
        positions = tap("positions", self.positions(first + len(ids), 0)[first:])
        slots = tap("slots", self.slots(first + len(ids), 0)[first:])
        hidden = None if hidden is None else tap("fc_out", hidden)[None]
        self.state.cache.start = int(slots[0])
        mask = self.mask(slots, len(ids))[None, None]
        return self.trunk(ids[None], hidden, positions[None], mask, layer_tap)[0]


class ChainLoop(StepLoop[T, Eagle3], Generic[T]):
    """gpt-oss with an EAGLE-3 drafter. On a chain row `drafter.fc_out` is the recycled hidden."""

    @point
    @torch.no_grad()
    def prefill_drafter(self, prompt: Tensor) -> None:
        """The drafter over the prompt, whose tokens are one ahead of their taps."""
        taps = self.tap("drafter.taps", self.taps(0, len(prompt) - 1))
        self._pass(prompt[1:], self.drafter.fuse(taps), first=0, total=len(prompt) - 1)
        self.state.draft_length = len(prompt) - 1

    def committed(self) -> tuple[Tensor, Tensor]:
        """The tokens of the round before, with their true taps."""
        ids = torch.tensor(self.state.emitted[-len(self.state.pending_taps) :])
        return ids, self.drafter.fuse(self.tap("drafter.taps", self.state.pending_taps))

    def trunk(
        self, ids: Tensor, hidden: Tensor | None, positions: Tensor, mask: Tensor, tap: Callable[[int], LayerTap]
    ) -> Tensor:
        """See `StepLoop.trunk`; the hidden is fused, or recycled."""
        assert hidden is not None
        return self.drafter.trunk(ids, hidden, positions, mask, self.state.cache, tap(0))
