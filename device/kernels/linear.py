"""Linear layers in x@W form."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.kernels.collectives import all_reduce
from parity.device.kernels.program import program


@program
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """y = x W + b, rounded once to x's dtype.

    Args:
        x: [B, S, in].
        weight: [in, out].
        bias: [out], or None.
    """
    if bias is None:
        return np.matmul(x, weight)
    return wide_linear(x, weight, bias).astype(x.dtype)


@program
def row_parallel(x: Any, weight: Any, bias: Any = None) -> Any:
    """The same where ranks share out the rows of W: their partial sums added in float32, then one rounding."""
    return all_reduce(wide_linear(x, weight, bias)).astype(x.dtype)


def wide_linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """x W + b as the float32 accumulator holds it: the casts of the operands change no value."""
    product = np.matmul(x.astype(np.float32), weight.astype(np.float32))
    return product if bias is None else product + bias.astype(np.float32)
