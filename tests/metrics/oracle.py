"""The float64 oracle: every metric in the plainest NumPy, straight from its definition."""

from __future__ import annotations

from math import inf

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = tuple(np.dtype(d) for d in (BFLOAT16, np.float16, np.float32, np.float64))
_PRECISION = {BFLOAT16: 8, np.dtype("f2"): 11, np.dtype("f4"): 24, np.dtype("f8"): 53}


class Oracle:
    """Metrics of a pair, one property each, from whole float64 copies."""

    def __init__(self, golden: np.ndarray, device: np.ndarray) -> None:
        self.raw = golden, device
        g, d = golden.astype(np.float64), device.astype(np.float64)
        self.finite = np.isfinite(g) & np.isfinite(d)
        self.full = np.where(self.finite, g, 0), np.where(self.finite, d, 0)
        self.g, self.d = g[self.finite], d[self.finite]
        self.e = self.d - self.g

    def rel_l2(self) -> float:
        return _ratio(np.linalg.norm(self.e), np.linalg.norm(self.g))

    def rows_rel_l2(self, row_axes: int) -> np.ndarray:
        others = tuple(range(row_axes, self.full[0].ndim))
        g, d = self.full
        error, norm = (np.sqrt((x * x).sum(axis=others)) for x in (d - g, g))
        return np.vectorize(_ratio, otypes=[float])(error, norm)

    def cosine_distance(self) -> float:
        """In extended precision, as 1 - cos loses half the digits of float64."""
        g, d = self.g.astype(np.longdouble), self.d.astype(np.longdouble)
        norms = np.sqrt((g * g).sum()) * np.sqrt((d * d).sum())
        if norms == 0:
            return float(g.any() != d.any())
        return float(1 - (g * d).sum() / norms)

    def ulps(self) -> list[int]:
        """ULP distances as Python integers, counted from the value itself and not from its bits."""
        unit = min((a.dtype for a in self.raw), key=_PRECISION.__getitem__)
        with np.errstate(over="ignore"):
            sides = [a[self.finite].astype(unit) for a in self.raw]
        golden, device = (_position(side, unit) for side in sides)
        return [abs(int(x) - int(y)) for x, y in zip(golden, device, strict=True)]


def _ratio(error: float, norm: float) -> float:
    return error / norm if norm > 0 else (inf if error > 0 else 0.0)


def _position(values: np.ndarray, unit: np.dtype) -> np.ndarray:
    """How many floats of dtype `unit` lie between 0 and each value, with its sign; infinity follows the largest."""
    info = ml_dtypes.finfo(unit)
    digits, lowest = _PRECISION[unit] - 1, int(np.log2(float(info.smallest_normal)))
    magnitude = np.abs(values.astype(np.float64))
    infinite = np.isinf(magnitude)
    magnitude = np.where(infinite, float(info.max), magnitude)
    exponent = np.maximum(np.frexp(magnitude)[1].astype(np.int64) - 1, lowest)
    mantissa = np.ldexp(magnitude, digits - exponent).astype(np.int64)
    return np.sign(values.astype(np.float64)).astype(np.int64) * ((exponent - lowest) * 2**digits + mantissa + infinite)
