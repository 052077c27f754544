"""Caches of an fp8 format: they keep each number over the layer's scale, and give it multiplied again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from parity.device.kernels.program import program

FORMATS = {"fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2)}
"""What a cache may keep beside the dtype of the pass."""
LARGEST = {name: float(ml_dtypes.finfo(dtype).max) for name, dtype in FORMATS.items()}


@program
def scaled(rows: Any, scale: Any, kind: str) -> Any:
    """Rows [B, S, G, D] as a cache of this format is given them: over the scale [1], within its range; float32."""
    wide = rows.astype(np.float32) / scale
    return np.minimum(np.maximum(wide, -LARGEST[kind]), LARGEST[kind])


@program
def widened(held: Any, scale: Any, dtype: np.dtype) -> Any:
    """What a cache holds as attention reads it: times the scale [1], in the dtype of the pass."""
    return (held.astype(np.float32) * scale).astype(dtype)


def written(rows: Sequence[Any], weights: dict[str, Any], kind: str) -> Sequence[Any]:
    """What a layer's keys and values are written as; themselves without a format.

    Args:
        weights: the layer's, with `k_scale` and `v_scale` where there is a format.
    """
    if not kind:
        return rows
    return [scaled(one, weights[f"{part}_scale"], kind) for part, one in zip("kv", rows, strict=True)]


def read(caches: Sequence[Any], weights: dict[str, Any], kind: str, like: Any) -> Sequence[Any]:
    """What attention reads of rows of a layer's caches, in the dtype of `like`; themselves without a format."""
    if not kind:
        return caches
    return [widened(one, weights[f"{part}_scale"], like.dtype) for part, one in zip("kv", caches, strict=True)]
