"""A device with a program of its own: NumPy-style kernels that are recorded, and a compiler that masks whole rows."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from parity.device import load  # noqa: F401  the factory that `operate` and `operations` stand beside
from parity.ops.record import record
from parity.seam import Operation


def attend(scores, mask, values, slots):
    """Masked assignment, softmax, a sum and a scatter, by functions, methods and operators."""
    held = scores.astype(np.float32)
    held[~mask] = -1e30
    held -= held.max(axis=-1, keepdims=True)
    shares = np.exp(held) / np.exp(held).sum(-1, keepdims=True)
    mixed = np.matmul(shares, values.astype(np.float32))
    cache = np.zeros_like(values)
    cache[slots[:, 0]] = mixed.astype(values.dtype)[..., : values.shape[1]]
    return cache.T.reshape(2, -1)


def operations() -> list[Operation]:
    """Of one call."""
    draw = np.random.default_rng(0)
    values = draw.standard_normal((9, 12)).astype(ml_dtypes.bfloat16)
    scores, slots = draw.standard_normal((6, 9)).astype(ml_dtypes.bfloat16), np.arange(12).reshape(6, 2) // 2
    return record(attend, scores, scores > 0, values, slots)


def operate(operation: Operation, *arrays: np.ndarray) -> np.ndarray:
    """Right but for a masked assignment, which takes a row as masked where any of it is."""
    if operation.name == "setitem" and arrays[1].dtype == bool:
        arrays = arrays[0], np.broadcast_to(arrays[1].any(axis=-1, keepdims=True), arrays[1].shape)
    with np.errstate(all="ignore"):
        made = operation.apply(*arrays)
    return made.astype(np.float32) if made.dtype == np.float64 else made
