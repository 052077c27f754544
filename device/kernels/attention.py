"""Attention over the cache: grouped heads, causal by position, with window and sinks where asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.kernels.program import program

# Finite: a row that sees no key stays finite too, and exp gives an exact zero beside any real score.
MASKED = -1e30


def visible(positions: Any, keys: int, window: int | None) -> Any:
    """Which of the first `keys` cache rows each query sees: 0 <= q - k < window.

    Args:
        positions: int32 [B, S].

    Returns:
        bool [B, S, keys], from iota compares.
    """
    distance = positions[:, :, None] - np.arange(keys, dtype=np.int32)
    causal = distance >= 0
    return causal if window is None else np.logical_and(causal, distance < window)


@program
def attend(q: Any, keys: Any, values: Any, seen: Any, sinks: Any = None) -> Any:
    """Softmax attention; scores and softmax in float32, weights cast once, one rounding of the sum.

    Args:
        q: [B, S, N, D].
        keys, values: [B, P, G, D], rows of the cache.
        seen: bool [B, S, P].
        sinks: [N], one logit a head that only takes weight away, or None.

    Returns:
        [B, S, N * D].
    """
    batch, rows, heads, dim = q.shape
    span, groups = keys.shape[1:3]
    each = heads // groups
    grouped = q.reshape(batch, rows, groups, each, dim).transpose(0, 2, 3, 1, 4).reshape(batch, groups, -1, dim)
    scores = np.matmul(grouped.astype(np.float32), keys.transpose(0, 2, 3, 1).astype(np.float32)) * dim**-0.5
    scores = np.where(seen[:, None, None], scores.reshape(batch, groups, each, rows, span), MASKED)
    weights = softmax(scores, None if sinks is None else sinks.reshape(1, groups, each, 1, 1))
    weights = weights.astype(q.dtype).reshape(batch, groups, each * rows, span)
    mixed = np.matmul(weights, seen_values(values, seen).transpose(0, 2, 1, 3))
    return mixed.reshape(batch, groups, each, rows, dim).transpose(0, 3, 1, 2, 4).reshape(batch, rows, heads * dim)


def seen_values(values: Any, seen: Any) -> Any:
    """Values [B, P, G, D] without the rows that no query sees: a weight of zero times NaN is NaN."""
    return np.where(np.any(seen, axis=1)[:, :, None, None], values, 0.0)


def softmax(x: Any, sink: Any = None) -> Any:
    """Softmax of float32 x along the last axis; `sink` is one more column, dropped afterwards."""
    top = np.max(x, axis=-1, keepdims=True)
    if sink is None:
        parts = np.exp(x - top)
        return parts / np.sum(parts, axis=-1, keepdims=True)
    sink = sink.astype(np.float32)
    top = np.maximum(top, sink)
    parts = np.exp(x - top)
    return parts / (np.sum(parts, axis=-1, keepdims=True) + np.exp(sink - top))
