"""`measure_exact`: integer and boolean tensors, which either agree or do not."""

from __future__ import annotations

import numpy as np

from parity.metrics.dtypes import is_exact
from parity.metrics.engine import CHUNK
from parity.metrics.record import ExactMetrics
from parity.metrics.tiles import cut


def measure_exact(golden: np.ndarray, device: np.ndarray, *, chunk: int = CHUNK) -> ExactMetrics:
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


def _stream(golden: np.ndarray, device: np.ndarray, chunk: int) -> ExactMetrics:
    mismatches, worst, first = 0, 0, None
    for tile in cut(golden.shape, 0, chunk) if golden.size else ():
        g, d = golden[tile.index], device[tile.index]
        differs = g != d
        found = int(np.count_nonzero(differs))
        if not found:
            continue
        if first is None:
            first = _position(tile.index, differs)
        mismatches += found
        worst = max(worst, _largest(g[differs], d[differs]))
    values = (int(golden[first]), int(device[first])) if first is not None else (None, None)
    return ExactMetrics(golden.size, mismatches, first, *values, worst)


def _position(index: tuple[slice, ...], differs: np.ndarray) -> tuple[int, ...]:
    local = np.unravel_index(differs.argmax(), differs.shape)
    return tuple((part.start or 0) + int(at) for part, at in zip(index, local))


def _largest(g: np.ndarray, d: np.ndarray) -> int:
    """Largest |d - g|, in Python integers where 64 bits could overflow."""
    bounds = [int(side.max()) for side in (g, d)] + [int(side.min()) for side in (g, d)]
    kind = np.int64 if max(map(abs, bounds)) < 2**62 else object
    return int(np.abs(d.astype(kind) - g.astype(kind)).max())
