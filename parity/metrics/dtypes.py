"""The dtypes of a pair: its unit of least precision, and integers that count in that unit.

`ordinals` maps a float to an integer so that neighbouring floats map to neighbouring integers (-0 and
+0 both to 0); the ULP distance of two floats is the exact difference of their ordinals.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from parity.arrays import Array, DType

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
MANTISSA: dict[DType, int] = {
    BFLOAT16: 7,
    np.dtype(np.float16): 10,
    np.dtype(np.float32): 23,
    np.dtype(np.float64): 52,
}
"""Stored mantissa bits of the float dtypes a pair may have."""

_SIGNED: dict[int, type[np.signedinteger]] = {2: np.int16, 4: np.int32, 8: np.int64}


def is_float(dtype: DType) -> bool:
    """Whether `dtype` is one of the float dtypes of a pair."""
    return dtype in MANTISSA


def is_exact(dtype: DType) -> bool:
    """Whether `dtype` holds integers or truth values."""
    return dtype.kind in "iub"


def is_float8(dtype: DType) -> bool:
    """Whether `dtype` is a float of one byte, of which bytes are compared: its step is no unit of rounding."""
    return dtype.name.startswith("float8_")


def unit_of(golden: DType, device: DType) -> DType:
    """The dtype whose ULP measures the pair: the coarser of the two floats.

    Raises:
        TypeError: a side is not float16, bfloat16, float32 or float64.
    """
    for side, dtype in (("golden", golden), ("device", device)):
        if not is_float(dtype):
            raise TypeError(f"{side} has dtype {dtype}; metrics need float16, bfloat16, float32 or float64")
    return min(golden, device, key=MANTISSA.__getitem__)


def ordinals(values: Array, unit: DType) -> Array:
    """int64 of the shape of `values`, rounded to nearest even in `unit` first (float64 by way of float32)."""
    rounded = np.ascontiguousarray(values)
    if values.dtype != unit:
        with np.errstate(over="ignore"):
            rounded = rounded.astype(unit)
    bits = rounded.view(_SIGNED[unit.itemsize]).astype(np.int64)
    lowest = np.int64(np.iinfo(_SIGNED[unit.itemsize]).min)
    np.subtract(lowest, bits, out=bits, where=bits < 0)
    return bits


def distance(golden: Array, device: Array) -> Array:
    """uint64 ULP distance of two int64 ordinals; the difference may need all 64 bits."""
    upper, lower = np.maximum(golden, device), np.minimum(golden, device)
    return upper.astype(np.uint64) - lower.astype(np.uint64)
