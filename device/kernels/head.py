"""From the residual stream to ids: final norm is the caller's, then logits and the greedy choice."""

from __future__ import annotations

from typing import Any

import numpy as np

from device.kernels.program import program


@program
def greedy(logits: Any) -> Any:
    """The largest of logits [B, S, V], the lowest id on a tie: int32 [B, S]."""
    return np.argmax(logits, axis=-1)


@program
def to_target_ids(draft_ids: Any, d2t: Any) -> Any:
    """Draft ids [B, K] to target ids: d2t [VD] is an offset, not an id."""
    return draft_ids + np.take(d2t, draft_ids, axis=0)
