"""Matrix multiplication alone, as the linear layers of a pass do it."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.engines import AnyEngine
from parity.device.kernels.linear import linear, wide_linear
from parity.device.kernels.program import program


def multiply(left: np.ndarray, right: np.ndarray, dtype: str, engine: AnyEngine) -> np.ndarray:
    """left [(batch,) M, K] times right [(batch,) K, N]; see `parity.seam.Multiply`."""
    x = engine.array(left if left.ndim == 3 else left[None])
    result = engine.host(product(x, engine.array(right), dtype))
    product_of: np.ndarray = result if left.ndim == 3 else result[0]
    return product_of


@program
def product(x: Any, weight: Any, dtype: str) -> Any:
    """x W in `dtype`: the accumulator's own values where that is float32."""
    return wide_linear(x, weight) if dtype == "float32" else linear(x, weight)
