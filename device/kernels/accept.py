"""Greedy acceptance: the longest prefix of drafts that the target agrees with, and one token more."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.kernels.program import program


def matching(drafts: Any, verified: Any) -> Any:
    """How many drafts [B, K] agree with verified [B, K+1] before the first that does not: int32 [B]."""
    return _leading(drafts == verified[:, :-1])


@program
def emitted_length(drafts: Any, verified: Any, ends: Any, budget: Any) -> Any:
    """Tokens of verified [B, K+1] to emit: int32 [B].

    Args:
        ends: int32 [n], the end tokens; the first one emitted is the last.
        budget: int32 [B], tokens that may still be emitted.
    """
    is_end = np.any(verified[:, :, None] == ends, axis=-1)
    before_end = _leading(np.logical_not(is_end))
    return np.minimum(np.minimum(matching(drafts, verified), before_end) + 1, budget)


def _leading(good: Any) -> Any:
    """How many of good [B, n] are true before the first that is not."""
    failed = np.cumsum(np.logical_not(good).astype(np.int32), axis=1)
    return np.sum((failed == 0).astype(np.int32), axis=1)
