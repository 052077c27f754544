"""Top-k overlap of two tensors of logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def topk_overlap(golden: np.ndarray, device: np.ndarray, ks: Sequence[int] = (1, 5, 50)) -> dict[int, np.ndarray]:
    """Share of the golden's top k that the device has among its own, for every row.

    Ties at the k-th place go to the lowest index on both sides, so that constant logits overlap with
    nothing by accident; NaN ranks below everything. A k beyond the vocabulary means all of it.

    Args:
        golden: float logits [..., V].
        device: the same shape; its dtype may differ.
        ks: each at least 1.

    Returns:
        k -> float64 of the leading shape, in [0, 1].

    Raises:
        ValueError: shapes differ, there is no logit, or a k is below 1.
    """
    golden, device = np.asanyarray(golden), np.asanyarray(device)
    if golden.shape != device.shape or not golden.ndim or not golden.shape[-1] or min(ks) < 1:
        raise ValueError(f"no top-k of golden {golden.shape}, device {device.shape} at k = {tuple(ks)}")
    leading = golden.shape[:-1]
    shares = {k: np.empty(leading) for k in ks}
    for index in np.ndindex(leading):
        for k, share in zip(ks, _overlaps(golden[index], device[index], ks)):
            shares[k][index] = share
    return shares


def _overlaps(golden: np.ndarray, device: np.ndarray, ks: Sequence[int]) -> list[float]:
    places = [min(k, golden.size) for k in ks]
    chosen = zip(places, _top(golden, places), _top(device, places))
    return [np.intersect1d(g, d, assume_unique=True).size / k for k, g, d in chosen]


def _top(logits: np.ndarray, places: Sequence[int]) -> list[np.ndarray]:
    """For every k the indices of the k largest, ties to the lowest index."""
    values = logits.astype(np.float64 if logits.dtype.itemsize > 4 else np.float32)
    values = np.where(np.isnan(values), -np.inf, values)
    order = np.partition(values, [values.size - k for k in places])
    return [_at_least(values, order[values.size - k], k) for k in places]


def _at_least(values: np.ndarray, bound: float, k: int) -> np.ndarray:
    above = np.flatnonzero(values > bound)
    tied = np.flatnonzero(values == bound)[: k - above.size]
    return np.concatenate((above, tied))
