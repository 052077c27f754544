"""Choices that are drawn where the best is due: as often another one, and as unlikely ones, as a softmax draws."""

from __future__ import annotations

import numpy as np

LEAST = 5
"""Fewer wrong choices are as many as any temperature draws."""

TEMPERATURES = 2.0 ** np.linspace(-3, 3, 61)
"""What is tried: beyond them a choice is the best one, or any."""

SURELY = 3.0
"""Standard errors within which the wrong choices are as many, and as likely, as those that are drawn."""


def drawn(scores: np.ndarray, theirs: np.ndarray) -> str:
    """How choices [R] are drawn by scores [R, V], in words; '' where they are not.

    The temperature is the likeliest. What speaks for a draw is not used to find it: how many choices are not the best
    one, and how likely these are among the others.
    """
    rows, best = np.arange(len(theirs)), scores.argmax(axis=1)
    wrong = theirs != best
    if wrong.sum() < LEAST:
        return ""
    every = [_logs(scores.astype(np.float64) / temperature) for temperature in TEMPERATURES]
    likeliest = int(np.argmax([logs[rows, theirs].sum() for logs in every]))
    if likeliest in (0, len(TEMPERATURES) - 1):
        return ""
    logs = every[likeliest]
    others = 1 - np.exp(logs[rows, best])
    due = float(others.sum())
    apart = abs(wrong.sum() - due) / np.sqrt(max((others * (1 - others)).sum(), 1e-12))
    rest = logs[wrong].copy()
    rest[np.arange(len(rest)), best[wrong]] = -np.inf
    rest = _logs(rest)
    shares = np.exp(rest)
    each = np.where(shares > 0, rest, 0.0)
    mean, square = (shares * each).sum(axis=1), (shares * each**2).sum(axis=1)
    told = rest[np.arange(len(rest)), theirs[wrong]]
    unlike = abs((told - mean).sum()) / np.sqrt(max((square - mean**2).sum(), 1e-12))
    if max(apart, unlike) > SURELY:
        return ""
    many = f"{wrong.sum()} of {len(theirs)} are not the best one, {due:.0f} would be"
    return f"drawn by the softmax of the scores, at a temperature of about {TEMPERATURES[likeliest]:.2g} ({many})"


def _logs(scores: np.ndarray) -> np.ndarray:
    """Logarithms of the softmax [R, V]."""
    scores = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))
