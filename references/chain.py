"""The speculative loop with a drafter that runs K passes a round, each one row behind the one before.

A round runs over the C committed rows first; the last of them drafts. Each of the K-1 chain rows behind it carries the
draft before it, one position further on. With EAGLE-3 the committed rows have true taps, and a chain row takes the
residual stream that the row before it left. Its keys and values only this round reads: they are dropped when the round
commits.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from parity.references.drafter_loop import DrafterLoop
from parity.references.eagle3 import Eagle3
from parity.references.loop import T
from parity.references.points import point

S = TypeVar("S", bound=Any)
"""A drafter that runs step by step."""


class StepLoop(DrafterLoop[T, S], Generic[T, S]):
    """gpt-oss with a drafter that runs step by step.

    The stages are those of `SpeculativeLoop`; the rows of the K passes stand in the order in which they run:
    W = C + K - 1, the committed ones, then the chain rows.
    """

    @point
    @torch.no_grad()
    def draft(self) -> Tensor:
        """C committed rows, then K-1 chain rows: K ids [K]."""
        ids = self.pending()
        committed = len(ids)
        stream = self.rows(ids, self.state.pending_taps, behind=self.k - 1)
        drafts = [self.choose(self.predicting(stream, committed), 0, self.k)]
        for step in range(1, self.k):
            stream, draft = self.chain_step(drafts[-1], stream, step, committed)
            drafts.append(draft)
        self.state.draft_length += committed
        return torch.cat(drafts)

    @point
    def chain_step(self, draft: Tensor, stream: Tensor, step: int, committed: int) -> tuple[Tensor, Tensor]:
        """Chain row 1 … K-1, behind rows that left `stream` [n, H] and chose `draft` [1]: its own of both."""
        ids, hidden = self.drafted(draft), self.recycled(stream)
        stream = self.run_rows(ids, hidden, committed + step - 1, committed, self.k - 1)
        return stream, self.choose(self.predicting(stream, 1), step, self.k)

    @point
    def drafted(self, draft: Tensor) -> Tensor:
        """The id [1] that the next chain row embeds: the draft, a target id."""
        return draft

    @point
    def recycled(self, stream: Tensor) -> Tensor | None:
        """What the next chain row takes for a hidden [1, H], of the last row's stream; None without one."""
        hidden: Tensor = self.drafter.recycled(stream[-1:])
        return hidden


class ChainLoop(StepLoop[T, Eagle3], Generic[T]):
    """gpt-oss with an EAGLE-3 drafter. On a chain row `drafter.fc_out` is the recycled hidden."""
