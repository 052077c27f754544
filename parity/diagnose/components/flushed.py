"""Small numbers that count as zero: of a weight, or of what enters; what a format or a unit flushes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from parity.diagnose.components.weights import TABLE
from parity.diagnose.components.wrong import Component, WrongRows

BLOCK = 32
"""Inputs of a block that has a scale of its own (MXFP4)."""

FEWER = 64
"""Rows, and outputs, by which a limit is chosen."""

LIMITS, NARROWED = 25, 4
"""Limits that are tried at once, and how often they are tried closer together: until no number lies between two."""

LOWEST, HIGHEST = 2.0**-16, 0.5
"""Shares of the largest number between which a limit may lie: float16's own range of full precision, and a half."""


def flushed(wrong: WrongRows, x: np.ndarray, weight: np.ndarray) -> Iterator[Component | None]:
    """Numbers below a share of the largest as zeros: of a weight, an output or a block; or of what enters, or a row.

    Args:
        x: what enters but for biases, [R, D].
        weight: float64 [wrong columns, D].
    """
    if max(x.size, weight.size) > TABLE:
        return
    error = wrong.error[:, wrong.columns]
    rows, outputs = (np.unique(np.linspace(0, n - 1, min(n, FEWER)).astype(int)) for n in error.shape)
    for values, what, largest, of in _largest(x, weight):
        share = np.abs(values) / np.maximum(largest, np.finfo(float).tiny)
        lost = partial(_lost, x=x, weight=weight, share=share, of_weight=values is weight)
        limit = _best(partial(_left, error[np.ix_(rows, outputs)], lost, rows, outputs))
        model = -lost(limit, slice(None), slice(None))
        yield wrong.judged(f"{wrong.where}{what} below {limit:.3g} times the largest {of} are zero", model, 1)


def _largest(x: np.ndarray, weight: np.ndarray) -> Iterator[tuple[np.ndarray, str, np.ndarray, str]]:
    """What may be flushed: numbers, what they are, the largest of those that share a scale, and which those are."""
    size = np.abs(weight)
    yield weight, "numbers of the weight", size.max(initial=0.0), "of it"
    yield weight, "numbers of the weight", size.max(axis=1, keepdims=True), "of their output's"
    if size.shape[1] % BLOCK == 0:
        blocks = size.reshape(len(size), -1, BLOCK).max(axis=2)
        yield weight, "numbers of the weight", blocks.repeat(BLOCK, axis=1), f"of their block of {BLOCK} inputs"
    yield x, "numbers that enter", np.abs(x).max(initial=0.0), "of all rows"
    yield x, "numbers that enter", np.abs(x).max(axis=1, keepdims=True), "of their row"


At = np.ndarray | slice
"""Which rows, or outputs."""


def _lost(
    limit: float, rows: At, outputs: At, x: np.ndarray, weight: np.ndarray, share: np.ndarray, of_weight: bool
) -> np.ndarray:
    """What numbers below the limit give: those of the weight, or those that enter."""
    entering, by = x[rows], weight[outputs]
    if of_weight:
        by = np.where(share[outputs] < limit, by, 0.0)
    else:
        entering = np.where(share[rows] < limit, entering, 0.0)
    return np.asarray(entering @ by.T)


def _left(error: np.ndarray, lost: Callable[..., np.ndarray], rows: At, outputs: At, limit: float) -> float:
    return float(((error + lost(limit, rows, outputs)) ** 2).sum())


def _best(left: Callable[[float], float]) -> float:
    """The limit that leaves least."""
    low, high = np.log2(LOWEST), np.log2(HIGHEST)
    for _ in range(1 + NARROWED):
        best = min(np.linspace(low, high, LIMITS), key=lambda power: left(2.0**power))
        step = (high - low) / (LIMITS - 1)
        low, high = best - step, best + step
    return float(2.0**best)
