"""Splits of the keys that weigh more or less than they should: each by a factor of its own, row by row, head by head.

What goes wrong where partial softmaxes are merged, their maxima, sums, logarithms and sinks, is a factor of each split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from parity.diagnose.components.key_weights import given
from parity.diagnose.components.parts import INSIDE
from parity.diagnose.components.seen_keys import Keys
from parity.diagnose.components.wrong import DOWN_TO_NOISE, FULL, Component, WrongRows

WIDTHS, COUNTS = (16, 32, 64, 128, 256, 512), (2, 3, 4, 8)
"""Keys of a split, and splits of equal size."""

ROWS, HOPE = 8, 0.9
"""Wrong rows that are asked first, evenly chosen, and the share of their error that splits have to explain."""

MOSTLY = 5, 95
"""Percentiles between which the factors are told: a split that hardly says anything has any."""

Split = Callable[[Keys], np.ndarray]
"""From a row's keys to the number of the split of each, [T]."""


def in_splits(wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys]) -> Component | None:
    """The first cut of the keys whose splits, each by its own factor, make all of the error.

    Args:
        weight: of the output projection, float64 [wrong columns, N * D].
        rows: the keys of each wrong row.
    """
    some = np.unique(np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int))
    for says, split in _cuts():
        if max(len(np.unique(split(rows[at]))) for at in some) < 2 or not _explains(wrong, weight, rows, split, some):
            continue
        fits = _fits(wrong, weight, rows, split, np.arange(len(rows)))
        if fits is None:
            continue
        model, factors = fits
        low, high = np.percentile(factors, MOSTLY)
        told = f"each counts by a factor of its own, row by row and head by head ({low:.2g} to {high:.2g} times)"
        found = wrong.judged(f"{wrong.where}{says}: {told}", model, len(factors), INSIDE)
        if found is not None and found.whole:
            return found
    return None


def _cuts() -> Iterator[tuple[str, Split]]:
    """Ways to cut keys, those with the fewest splits first."""
    yield "keys of earlier passes and of the row's own", _by_pass
    for count in COUNTS:
        yield f"{count} splits of the cached keys", partial(_equal, count=count, cached=True)
        yield f"{count} splits of a row's keys", partial(_equal, count=count, cached=False)
    for width in reversed(WIDTHS):
        yield f"splits of {width} keys", partial(_of_width, width=width)


def _by_pass(keys: Keys) -> np.ndarray:
    return np.asarray(np.arange(len(keys.seen)) >= keys.cached, np.int64)


def _equal(keys: Keys, count: int, cached: bool) -> np.ndarray:
    """So many splits of the cached keys, or of those up to the row, what is behind them in the last."""
    length = keys.cached if cached else keys.position + 1
    return np.minimum(np.arange(len(keys.seen)) // max(length // count, 1), count - 1)


def _of_width(keys: Keys, width: int) -> np.ndarray:
    return keys.positions // width


Fits = tuple[np.ndarray, np.ndarray]
"""What the factors make of each row's error, [R, wrong columns], and all factors."""


def _fits(wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys], split: Split, some: np.ndarray) -> Fits | None:
    """Each row's factors by least squares; None where a row has more of them than its error could tell."""
    model, factors = [], []
    for at in some.tolist():
        held = _given_by(rows[at], weight, split)
        if len(held) > INSIDE * len(weight):
            return None
        error = wrong.error[at, wrong.columns]
        fitted = np.linalg.lstsq(held.T, error, rcond=None)[0]
        model.append(fitted @ held)
        factors.append(1 + fitted)
    return np.stack(model), np.concatenate(factors)


def _explains(wrong: WrongRows, weight: np.ndarray, rows: Sequence[Keys], split: Split, some: np.ndarray) -> bool:
    """Whether nearly all of the error of some rows is made, but for what noise explains."""
    fits = _fits(wrong, weight, rows, split, some)
    if fits is None or np.abs(fits[1] - 1).max() < FULL:
        return False
    error = wrong.error[some][:, wrong.columns]
    left = error - fits[0]
    free = np.sqrt(max(1 - len(fits[1]) / error.size, 1e-9))
    rest = float(np.sqrt(np.mean((left / wrong.noise[some]) ** 2))) / free
    return rest <= 2 * DOWN_TO_NOISE and float((left**2).sum()) <= (1 - HOPE) * float((error**2).sum())


def _given_by(keys: Keys, weight: np.ndarray, split: Split) -> np.ndarray:
    """What each split gives through each head, [splits * N, wrong columns]; nothing of splits that are not seen."""
    shares = given(keys, keys.scores, keys.sinks)[0]
    heads, size = keys.values.shape[0], keys.values.shape[2]
    numbers, by_head, made = split(keys), weight.reshape(len(weight), heads, size), []
    for number in np.unique(numbers[keys.seen]):
        mixed = ((shares * (numbers == number))[:, None] @ keys.values)[:, 0]
        made.append(np.einsum("cnd,nd->nc", by_head, mixed))
    return np.concatenate(made)
