"""How far each element is from what it should be, and how far it may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parity.ops.exact import condition
from parity.ops.kinds import CHOOSES, DTYPES, MOVES, SMALLEST, allowed_steps
from parity.seam import Operation


@np.errstate(all="ignore")
def element_errors(
    ran: Operation, arrays: Sequence[np.ndarray], got: np.ndarray, true: np.ndarray
) -> tuple[Any, Any, Any]:
    """The error of each element, its bound, and its ULP; where nothing is rounded 0 is right and 1 is wrong."""
    if true.dtype.kind in "iub":
        return (got != true).astype(float), np.zeros(got.shape), np.ones(got.shape)
    wide, exact, dtype = got.astype(np.float64), true.astype(np.float64), ran.results[0].dtype
    if not rounds(ran):
        alike = (wide == exact) & (ran.name in CHOOSES or _signs(got, true)) | np.isnan(wide) & np.isnan(exact)
        return (~alike).astype(float), np.zeros(got.shape), np.ones(got.shape)
    rounded, sizes = exact.astype(DTYPES[dtype]).astype(np.float64), condition(ran, arrays)
    scale = np.abs(exact) if sizes is None else sizes
    bounds = ulps(np.abs(exact), dtype) / 2 + allowed_steps(ran) * ulps(scale, "float32") + SMALLEST
    # Beyond the largest number there is infinity, and no distance.
    finite, same = np.isfinite(rounded), np.where(np.isnan(exact), np.isnan(wide), wide == rounded)
    errors = np.where(finite, np.abs(wide - exact), np.where(same, 0.0, np.inf))
    return errors, np.where(finite, bounds, 0.0), ulps(np.maximum(np.abs(exact), scale), dtype)


def _signs(got: np.ndarray, true: np.ndarray) -> Any:
    return np.signbit(got.astype(np.float32)) == np.signbit(true.astype(np.float32))


def rounds(operation: Operation) -> bool:
    """Whether its results are new floating-point numbers."""
    dtype, widened = operation.results[0].dtype, operation.name == "astype" and operation.operands[0].dtype != "float32"
    return dtype in ("bfloat16", "float32") and not widened and operation.name not in MOVES | CHOOSES


def ulps(sizes: np.ndarray, dtype: str) -> np.ndarray:
    """The ULP of a dtype at numbers of these sizes, float64; at zero that of the smallest normal number."""
    bits = 8 if dtype == "bfloat16" else 24
    steps: np.ndarray = np.ldexp(1.0, np.frexp(np.maximum(np.nan_to_num(sizes, posinf=1.0), SMALLEST))[1] - bits)
    return steps
