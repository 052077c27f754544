"""Splits of the keys with softmaxes of their own, whose sums meet in a wrong way."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from parity.diagnose.components.seen_keys import KeyRule, Keys

SPLITS = (16, 32, 64, 128)
"""Keys over which a kernel may take a softmax of its own before the sums of all meet."""


def splits(longest: int) -> Iterator[tuple[str, KeyRule]]:
    """Wrong ways in which the sums of splits meet, of rows that see so many keys at the most."""
    for size in SPLITS:
        if size < longest:
            yield f"splits of {size} keys count alike, whatever their keys weigh", partial(_alike, size=size)
            for says, at in (("", None), (", the sink in the last", -1), (", the sink in the first", 0)):
                yield f"splits of {size} keys meet without a common maximum{says}", partial(_apart, size=size, at=at)


def _in_splits(keys: Keys, size: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The scores [N, T] of the keys that are seen, and which of them each split has."""
    which = np.where(keys.seen, keys.positions // size, -1)
    return np.where(keys.seen, keys.scores, -np.inf), [which == one for one in np.unique(which[keys.seen])]


def _alike(keys: Keys, size: int) -> np.ndarray:
    """How often each key counts, [N, T], by the sum of its split."""
    shown, each = _in_splits(keys, size)
    whole, times = np.exp(shown - shown.max(axis=1, keepdims=True)), np.zeros(shown.shape)
    for split in each:
        times[:, split] = whole.sum(axis=1, keepdims=True) / len(each) / whole[:, split].sum(axis=1, keepdims=True)
    return times


def _apart(keys: Keys, size: int, at: int | None) -> np.ndarray:
    """How often each key counts, [N, T], by the maximum of its split; the sink is by that of split `at`, its own among
    its scores, or by the largest of all."""
    shown, each = _in_splits(keys, size)
    times, tops = np.zeros(shown.shape), [shown[:, split].max(axis=1, keepdims=True) for split in each]
    largest = shown.max(axis=1, keepdims=True)
    if at is not None and keys.sinks is not None:
        largest = tops[at] = np.maximum(tops[at], keys.sinks[:, None])
    for split, top in zip(each, tops, strict=True):
        times[:, split] = np.exp(largest - top)
    return times
