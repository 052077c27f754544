"""Integers, which either agree or do not (`measure_exact`), and the best of two rows of scores (`topk_overlap`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parity.arrays import Array
from parity.metrics.dtypes import is_exact
from parity.metrics.record import ExactMetrics, Index
from parity.metrics.stream import CHUNK, cut


def measure_exact(golden: Array, device: Array, *, chunk: int = CHUNK) -> ExactMetrics:
    """Mismatches of an exact tensor, compared by value whatever the integer dtypes.

    Args:
        golden: integers or booleans of any shape and strides; may be memory-mapped.
        device: the same shape.
        chunk: elements read at a time.

    Raises:
        ValueError: shapes differ.
        TypeError: a side holds no integers or booleans.
    """
    golden, device = np.asanyarray(golden), np.asanyarray(device)
    if golden.shape != device.shape:
        raise ValueError(f"golden has shape {golden.shape}, device {device.shape}")
    for side, array in (("golden", golden), ("device", device)):
        if not is_exact(array.dtype):
            raise TypeError(f"{side} has dtype {array.dtype}; exact stages hold integers or booleans")
    return _stream(golden, device, chunk)


def _stream(golden: Array, device: Array, chunk: int) -> ExactMetrics:
    mismatches, worst = 0, 0
    first: Index | None = None
    for tile in cut(golden.shape, 0, chunk) if golden.size else ():
        g, d = golden[tile.index], device[tile.index]
        differs = g != d
        if not differs.any():
            continue
        if first is None:
            first = _position(tile.index, differs)
        mismatches += int(np.count_nonzero(differs))
        worst = max(worst, _largest(g[differs], d[differs]))
    if first is None:
        return ExactMetrics(golden.size, 0)
    return ExactMetrics(golden.size, mismatches, first, int(golden[first]), int(device[first]), worst)


def _position(index: tuple[slice, ...], differs: Array) -> Index:
    local = np.unravel_index(differs.argmax(), differs.shape)
    return tuple((part.start or 0) + int(at) for part, at in zip(index, local, strict=True))


def _largest(g: Array, d: Array) -> int:
    """Largest |d - g|, in Python integers where 64 bits could overflow."""
    bounds = [int(side.max()) for side in (g, d)] + [int(side.min()) for side in (g, d)]
    kind = np.int64 if max(map(abs, bounds)) < 2**62 else object
    return int(np.abs(d.astype(kind) - g.astype(kind)).max())


def topk_overlap(golden: Array, device: Array, ks: Sequence[int] = (1, 5, 50)) -> dict[int, Array]:
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
    rows = [side.reshape(-1, side.shape[-1]) for side in (golden, device)]
    places = [min(k, golden.shape[-1]) for k in ks]
    step = max(CHUNK // golden.shape[-1], 1)
    shares = np.empty((len(ks), len(rows[0])))
    for start in range(0, len(rows[0]), step):
        part = slice(start, start + step)
        chosen = (_top(side[part], places) for side in rows)
        shares[:, part] = [np.count_nonzero(g & d, axis=1) / k for k, g, d in zip(places, *chosen, strict=True)]
    return {k: share.reshape(golden.shape[:-1]) for k, share in zip(ks, shares, strict=True)}


def _top(logits: Array, places: Sequence[int]) -> list[Array]:
    """For every k which of each row [R, V] are its k largest, ties to the lowest index."""
    values = logits.astype(np.float64 if logits.dtype.itemsize > 4 else np.float32)
    values[np.isnan(values)] = -np.inf
    most = max(places)
    best = np.sort(np.partition(values, values.shape[1] - most, axis=1)[:, -most:], axis=1)
    return [_at_least(values, best[:, most - k, None], k) for k in places]


def _at_least(values: Array, bound: Array, k: int) -> Array:
    """Of each row [R, V] the k first of what reaches its bound [R, 1]; what is above it goes before what ties."""
    chosen = np.asarray(values >= bound)
    many = np.flatnonzero(np.count_nonzero(chosen, axis=1) > k)
    if many.size:
        above, tied = values[many] > bound[many], values[many] == bound[many]
        left = k - np.count_nonzero(above, axis=1, keepdims=True)
        chosen[many] = above | (tied & (tied.cumsum(axis=1) <= left))
    return chosen
