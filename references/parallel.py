"""The speculative loop with a P-EAGLE drafter: K drafts in one pass.

A round feeds the C committed rows with their true taps and K-1 masked ones behind them, which carry a placeholder token
and `mask_hidden`. The last committed row and the masked ones draft.
"""

from __future__ import annotations

from typing import Generic

import torch
from torch import Tensor

from parity.references.drafter_loop import DrafterLoop
from parity.references.loop import T
from parity.references.peagle import PEagle
from parity.references.points import point


class ParallelLoop(DrafterLoop[T, PEagle], Generic[T]):
    """gpt-oss with a P-EAGLE drafter."""

    @point
    @torch.no_grad()
    def draft(self) -> Tensor:
        """C committed rows, fed again with their true taps, and K-1 placeholders: K ids [K]."""
        committed = self.pending()
        stream = self.rows(committed, self.state.pending_taps, behind=self.k - 1)
        self.state.draft_length += len(committed)
        drafting = self.predicting(stream, len(committed))
        return self.choose(drafting, 0, len(drafting))

    @point
    def ids(self, committed: Tensor, behind: int) -> Tensor:
        """The committed ids [C], then a placeholder for each masked row."""
        return torch.cat((committed, committed.new_full((behind,), self.drafter.config.placeholder_id)))

    @point
    def fused(self, taps: Tensor, behind: int) -> Tensor:
        """Taps [C, T*H] and `mask_hidden` on the masked rows, through `fc`: [W, H]."""
        return self.drafter.fuse(torch.cat((taps, self.drafter.mask_hidden[0].expand(behind, -1))))
