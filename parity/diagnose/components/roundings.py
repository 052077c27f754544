"""A product in fewer bits: its weight, what enters, or its sums from tile to tile."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from parity.diagnose.components.parts import Parts, in_all_or_some
from parity.diagnose.components.wrong import Component, WrongRows

FORMATS = {
    "fp8 (e4m3)": ml_dtypes.float8_e4m3fn,
    "fp8 (e5m2)": ml_dtypes.float8_e5m2,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
TILES = (8, 16, 32, 64, 128)
"""Inputs after which a kernel may put its sum away."""


def in_roundings(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts) -> Iterator[Component | None]:
    """Each format of weight and input, of all parts or of some; then sums.

    Args:
        x: what enters, [R, D].
        weight: float64 [wrong columns, D].
    """
    for name, low in _formats(weight):
        made = [(part, x[:, first:last] @ (low - weight)[:, first:last].T) for part, first, last in parts]
        yield in_all_or_some(wrong, f"the weight in {name}", x @ (low - weight).T, made)
    for name, low in _formats(x):
        made = [(part, (low - x)[:, first:last] @ weight[:, first:last].T) for part, first, last in parts]
        yield in_all_or_some(wrong, f"what enters in {name}", (low - x) @ weight.T, made)
    right = x @ weight.T
    for tile in TILES:
        if tile < x.shape[1]:
            says = f"{wrong.where}the sum in bfloat16 after each {tile} inputs"
            yield wrong.judged(says, _summed(x, weight, tile) - right, 0)


def _formats(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Rows of numbers in each format, as float64; 8-bit integers have one scale for a row."""
    for name, dtype in FORMATS.items():
        yield name, _low(values, dtype)
    step = np.abs(values).max(axis=1, keepdims=True) / 127
    yield "int8 by row", np.round(values / np.maximum(step, 1e-300)) * step


def _low(values: np.ndarray, dtype: type) -> np.ndarray:
    """Float64 by way of float32, as a kernel has them."""
    return np.asarray(values.astype(np.float32).astype(dtype).astype(np.float64))


def _summed(x: np.ndarray, weight: np.ndarray, tile: int) -> np.ndarray:
    """The product with its sum rounded to bfloat16 behind every tile of inputs."""
    total = np.zeros((len(x), len(weight)))
    for first in range(0, x.shape[1], tile):
        some = slice(first, first + tile)
        total = _low(total + x[:, some] @ weight[:, some].T, ml_dtypes.bfloat16)
    return total
