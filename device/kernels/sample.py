"""Sampling: the distribution behind the processors, draws from it, and the accept rule that keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parity.device.kernels.collectives import all_gather
from parity.device.kernels.program import program
from parity.seam import Sampling

LEAST = -200.0
"""Of scores behind the largest: exp gives 0 there, and what is minus infinity stays a number."""

HALVINGS = 40
"""Of 200: what is left lies below the spacing of float32, but for scores within 1e-7 of the largest."""


@program
def probabilities(logits: Any, settings: Sampling) -> Any:
    """What logits [B, S, V] are behind temperature, top-k, top-p and min-p: float32 [B, S, V], sums to 1.

    At temperature 0 all of it is the greedy choice's, the lowest id on a tie. Without a sort: the edge of a set of
    largest scores is found by halving, and ties at it are all kept.
    """
    wide = all_gather(logits, -1).astype(np.float32)
    if not settings.temperature:
        return _certain(wide)
    scores = np.maximum((wide - np.max(wide, axis=-1, keepdims=True)) / settings.temperature, LEAST)
    weights = np.exp(scores)
    if settings.top_k:
        edge = _edge(scores, lambda kept: np.sum(kept.astype(np.float32), axis=-1, keepdims=True) >= settings.top_k)
        weights = np.where(scores >= edge, weights, 0.0)
    if settings.top_p < 1:
        enough = np.sum(weights, axis=-1, keepdims=True) * settings.top_p
        edge = _edge(scores, lambda kept: np.sum(np.where(kept, weights, 0.0), axis=-1, keepdims=True) >= enough)
        weights = np.where(scores >= edge, weights, 0.0)
    weights = np.where(weights >= settings.min_p, weights, 0.0)  # the largest one is 1
    return weights / np.sum(weights, axis=-1, keepdims=True)


@program
def drawn(weights: Any, uniforms: Any) -> Any:
    """The first id of weights [B, S, V] up to which more than this share [B, S] of them lies: int32 [B, S].

    Never one of weight 0: a sum that rounding keeps below the share ends at the last id that it grew by.
    """
    sums = np.cumsum(weights, axis=-1)
    total = np.max(sums, axis=-1, keepdims=True)
    beyond = np.logical_or(sums > uniforms[..., None] * total, sums >= total)
    return np.argmax(np.logical_and(weights > 0.0, beyond).astype(np.int32), axis=-1)


@program
def by_residual(p: Any, q: Any, drafts: Any, accept: Any, replace: Any, target: Any) -> Any:
    """The published rule: int32 [B, n+1], row i the draft where it is accepted.

    Args:
        p: [B, n+1, V], of the target.
        q: [B, n, V], what the drafts were drawn from.
        drafts: int32 [B, n].
        accept, replace, target: float32 [B, n], [B, n] and [B, 1], in [0, 1).
    """
    place, own = drafts[..., None], p[:, :-1]
    kept = accept * np.take_along_axis(q, place, axis=-1)[..., 0] < np.take_along_axis(own, place, axis=-1)[..., 0]
    left = np.maximum(own - q, 0.0)
    # Where p and q are one up to rounding, nothing is left of a draft that rounding rejected.
    left = np.where(np.sum(left, axis=-1, keepdims=True) > 0.0, left, own)
    return np.concatenate([np.where(kept, drafts, drawn(left, replace)), drawn(p[:, -1:], target)], axis=1)


@program
def in_target_ids(q: Any, places: Any) -> Any:
    """q [B, K, VD] over the target's vocabulary: [B, K, V]; `places` [V] are draft ids, VD where there is none."""
    return np.take(np.concatenate([q, q[..., :1] * 0.0], axis=-1), places, axis=-1)


def _certain(scores: Any) -> Any:
    """All of the probability on the first largest of scores [B, S, V]: float32 [B, S, V]."""
    largest = (scores >= np.max(scores, axis=-1, keepdims=True)).astype(np.float32)
    return np.where(np.cumsum(largest, axis=-1) < 2.0, largest, 0.0)


def _edge(scores: Any, enough: Callable[[Any], Any]) -> Any:
    """The largest edge of which `scores >= edge` is enough, all of them being it: [B, S, 1]."""
    low = np.min(scores, axis=-1, keepdims=True)
    high = low * 0.0
    for _ in range(HALVINGS):
        middle = (low + high) * 0.5
        held = enough(scores >= middle)
        low, high = np.where(held, middle, low), np.where(held, high, middle)
    return low
