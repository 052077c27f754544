"""Grouped attention over one preallocated cache of all layers."""

from __future__ import annotations

import numpy as np


def store(layers: int, groups: int, positions: int, dim: int) -> np.ndarray:
    """The cache [L, 2, G, P, D] of keys (0) and values (1), zero."""
    return np.zeros((layers, 2, groups, positions, dim), np.float32)


def pack(parts: list[np.ndarray], groups: int, dim: int) -> np.ndarray:
    """q, k and v weights [*D, ...] as one [G, N/G + 2, D, ...]: a group's queries, its key, its value."""
    return np.concatenate([part.reshape(groups, -1, dim, *part.shape[1:]) for part in parts], axis=1)


def attend(q, rows, allowed, scale, rounded, sinks=None) -> np.ndarray:
    """Queries over the cache rows of one layer.

    Args:
        q: [S, G, R, D], R queries to a group.
        rows: [2, G, T, D].
        allowed: bool [S, T].
        scale: of the scores.
        rounded: the `Precision`.
        sinks: [G, R] logits of a key without value.

    Returns:
        float32 [S, G * R * D].
    """
    S, G, R, D = q.shape
    keys, values = rows
    scores = q.transpose(1, 0, 2, 3).reshape(G, S * R, D) @ keys.transpose(0, 2, 1)
    scores = np.where(allowed[:, None], scores.reshape(G, S, R, -1) * np.float32(scale), -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, :, None])
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, :, None] - top)
    weights = rounded(weights / total)
    mixed = weights.reshape(G, S * R, -1) @ values
    return rounded(mixed.reshape(G, S, R * D).transpose(1, 0, 2).reshape(S, -1))
