"""What formats with a scale for each block of numbers keep: MXFP4, MXFP8, NVFP4, and integers by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import ml_dtypes
import numpy as np

Scale = Callable[[np.ndarray], np.ndarray]
"""From the largest magnitude of each block to its scale."""

MX, NV = 32, 16
"""Numbers of a block (OCP Microscaling Formats 1.0; NVFP4 as TensorRT's documentation has it)."""

GROUPS = (32, 64, 128)
"""Numbers that share a scale where weights are integers by group, as GPTQ and AWQ have them."""

LEVELS = {"int8": 127, "int4": 7}
"""The largest integer of each format."""

TINY = 1e-30
"""The least magnitude that a scale is made of: a block of zeros has one too."""


def block_formats() -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    """Each by name, with what it keeps of numbers [..., D], float64: blocks lie along the last axis."""
    four, eight = ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn
    for says, toward in (("", None), (", ties towards zero", 0.0), (", ties away from zero", np.inf)):
        yield f"MXFP4{says}", partial(_kept, size=MX, scale=partial(_power, dtype=four), dtype=four, toward=toward)
    yield "MXFP8 (e4m3)", partial(_kept, size=MX, scale=partial(_power, dtype=eight), dtype=eight)
    yield "NVFP4", (nv := partial(_kept, size=NV, scale=_in_eight_bits, dtype=four))
    yield f"NVFP4{AGAIN}", partial(_again, kept=nv)
    for name, levels in LEVELS.items():
        for size in GROUPS:
            yield f"{name} by group of {size}", (by := partial(_in_steps, size=size, levels=levels))
            yield f"{name} by group of {size}{AGAIN}", partial(_again, kept=by)


AGAIN = ", held in bfloat16"
"""What is said of numbers that a device keeps in bfloat16 once their scale, no power of two, has joined them."""


def _again(values: np.ndarray, kept: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return np.asarray(kept(values).astype(ml_dtypes.bfloat16).astype(np.float64))


def _kept(values: np.ndarray, size: int, scale: Scale, dtype: type, toward: float | None = None) -> np.ndarray:
    """Each block as numbers of a format times its scale; what lies between two goes to the even one, or the one toward
    this magnitude: weights that are packed a second time often do."""
    blocks = _blocks(values, size)
    by = scale(_most(blocks))
    largest = float(ml_dtypes.finfo(dtype).max)
    narrow = np.clip(blocks / by, -largest, largest).astype(np.float32)
    if toward is not None:
        narrow = np.nextafter(narrow, np.copysign(np.float32(toward), narrow))
    return _joined(narrow.astype(dtype).astype(np.float64) * by, values)


def _in_steps(values: np.ndarray, size: int, levels: int) -> np.ndarray:
    """In float32, as a loader has them: half of the largest is as near to one step as to the next."""
    blocks = _blocks(values.astype(np.float32), size)
    step = _most(blocks) / np.float32(levels)
    return _joined((np.round(blocks / step) * step).astype(np.float64), values)


def _blocks(values: np.ndarray, size: int) -> np.ndarray:
    """[..., D] as [..., blocks, size], zeros behind a block that is not full."""
    missing = -values.shape[-1] % size
    padded = np.pad(values, [*[(0, 0)] * (values.ndim - 1), (0, missing)])
    return padded.reshape(*values.shape[:-1], -1, size)


def _joined(blocks: np.ndarray, values: np.ndarray) -> np.ndarray:
    return blocks.reshape(*blocks.shape[:-2], -1)[..., : values.shape[-1]]


def _most(blocks: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(np.abs(blocks).max(axis=-1, keepdims=True), TINY))


CODES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the four bits of MXFP4 say, zero and signs aside."""

MISREAD = {0.5: (0.0, 0.25, 0.75, 1.0), 1.0: (0.5, 2.0), 1.5: (1.0, 1.25, 2.0), 2.0: (1.0, 1.5, 4.0),
           3.0: (2.0, 2.5, 4.0), 4.0: (3.0, 5.0, 6.0), 6.0: (4.0, 5.0, 8.0, 12.0)}  # fmt: skip
"""What each may be taken for: a number beside it, one without the mantissa's bit, a subnormal as normal or as zero."""


def nearest_codes(values: np.ndarray) -> np.ndarray:
    """The magnitude that MXFP4 has for each number [..., D], by the scales of its blocks; 0 of what it flushes."""
    blocks = _blocks(np.asarray(values, np.float64), MX)
    by = _power(_most(blocks), ml_dtypes.float4_e2m1fn)
    most = float(ml_dtypes.finfo(ml_dtypes.float4_e2m1fn).max)
    codes = np.clip(np.abs(blocks) / by, 0, most).astype(np.float32).astype(ml_dtypes.float4_e2m1fn)
    return _joined(codes.astype(np.float64), values)


def _power(most: np.ndarray, dtype: type) -> np.ndarray:
    """The power of two by which the largest number has the format's largest exponent."""
    return np.asarray(np.exp2(np.floor(np.log2(most)) - np.floor(np.log2(float(ml_dtypes.finfo(dtype).max)))))


def _in_eight_bits(most: np.ndarray) -> np.ndarray:
    """The largest number over that of four bits, itself in fp8."""
    exact = most / float(ml_dtypes.finfo(ml_dtypes.float4_e2m1fn).max)
    low = exact.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return np.where(low > 0, low, exact)
