"""From the residual stream to ids: final norm is the caller's, then logits and the greedy choice."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.kernels.collectives import all_gather
from parity.device.kernels.program import program


@program
def greedy(logits: Any) -> Any:
    """The largest of logits [B, S, V], the lowest id on a tie: int32 [B, S].

    Ranks hold V in their order, so that the first rank of a tie has the lowest id: each one's best is compared
    by value, and the winner's place tells how many ids lie before its own.
    """
    mine = np.argmax(logits, axis=-1)[..., None]
    best = all_gather(np.take_along_axis(logits, mine, axis=-1), -1)
    winner = np.argmax(best, axis=-1)[..., None]
    found = np.take_along_axis(all_gather(mine, -1), winner, axis=-1) + winner * logits.shape[-1]
    return found[..., 0]


@program
def to_target_ids(draft_ids: Any, d2t: Any) -> Any:
    """Draft ids [B, K] to target ids: d2t [VD] is an offset, not an id."""
    return draft_ids + np.take(d2t, draft_ids, axis=0)
