"""What speculative sampling has to give, from the equations, in float64: distributions, and a round's exact outcome."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product

import numpy as np

from parity.seam import Rule, Sampling

Outcomes = dict[tuple[int, ...], float]
"""Probabilities of the tokens that a round emits, whole: n accepted drafts and one token make n + 1."""


def processed(logits: np.ndarray, settings: Sampling, slack: float = 0.0) -> np.ndarray:
    """The distribution behind temperature, top-k, top-p and min-p; at temperature 0 the first largest logit alone.

    Args:
        logits: [..., V].
        slack: the edges of top-p and min-p are moved by this share: with it and without it a token at the edge is in
            one of two sets.

    Returns:
        float64 [..., V], rows that sum to 1.
    """
    scores = np.asarray(logits, np.float64)
    if not settings.temperature:
        greedy: np.ndarray = np.arange(scores.shape[-1]) == scores.argmax(axis=-1)[..., None]
        return greedy.astype(np.float64)
    scores = (scores - scores.max(axis=-1, keepdims=True)) / settings.temperature
    p = _normed(np.exp(scores))
    ranked = -np.sort(-p, axis=-1)
    if 0 < settings.top_k < p.shape[-1]:
        p = _normed(np.where(p >= ranked[..., settings.top_k - 1, None], p, 0))
    if settings.top_p < 1:
        ranked = -np.sort(-p, axis=-1)
        before = np.cumsum(ranked, axis=-1) - ranked
        needed = before < settings.top_p * (1 + slack)
        least = np.where(needed, ranked, np.inf).min(axis=-1, keepdims=True)
        p = _normed(np.where(p >= least, p, 0))
    return _normed(np.where(p >= settings.min_p * (1 + slack) * p.max(axis=-1, keepdims=True), p, 0))


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """What takes a rejected draft's place: max(p - q, 0) made to sum to 1 [..., V]; p where nothing is left."""
    left = np.maximum(p - q, 0)
    return _normed(np.where(left.sum(axis=-1, keepdims=True) > 0, left, p))


def accepted(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """With which probability each token [..., V] is accepted as a draft: min(1, p / q); 0 where it is never drawn."""
    chance: np.ndarray = np.minimum(1, np.divide(p, q, out=np.zeros_like(p), where=q > 0))
    return chance


def round_outcomes(p: np.ndarray, q: np.ndarray, rule: Rule) -> Outcomes:
    """What a round emits, by enumeration of every draft and every decision.

    Args:
        p: float64 [K+1, V], the same whatever the drafts.
        q: float64 [K, V].
    """
    outcomes: Outcomes = defaultdict(float)
    for drafts in product(range(p.shape[1]), repeat=len(q)):
        weight = float(np.prod([q[row, draft] for row, draft in enumerate(drafts)]))
        for emitted, chance in _of_drafts(drafts, p, q, rule):
            outcomes[emitted] += weight * chance
    return {emitted: chance for emitted, chance in outcomes.items() if chance}


def _of_drafts(
    drafts: tuple[int, ...], p: np.ndarray, q: np.ndarray, rule: Rule
) -> Iterator[tuple[tuple[int, ...], float]]:
    """What comes of these drafts: emitted tokens and their probabilities."""
    reached = 1.0
    for row, draft in enumerate(drafts):
        others, kept = p[row].copy(), p[row, draft]
        others[draft] = 0
        if rule == "residual":
            kept = accepted(p[row], q[row])[draft]
            others = (1 - kept) * residual(p[row], q[row])
        for token in np.flatnonzero(others):
            yield (*drafts[:row], int(token)), reached * others[token]
        reached *= kept
    for token in np.flatnonzero(p[-1]):
        yield (*drafts, int(token)), reached * p[-1, token]


def _normed(weights: np.ndarray) -> np.ndarray:
    total: np.ndarray = weights / weights.sum(axis=-1, keepdims=True)
    return total
