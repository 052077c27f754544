"""What kinds of operations there are: what they may be fed with, and what an honest one may err by."""

from __future__ import annotations

from math import sqrt

import ml_dtypes
import numpy as np

from parity.seam import Operation

DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "int32": np.dtype(np.int32),
    "bool": np.dtype(bool),
}
MOVES = {
    *(
        "where",
        "take",
        "take_along_axis",
        "concatenate",
        "stack",
        "split",
        "getitem",
        "setitem",
        "reshape",
        "transpose",
    ),
    *("zeros_like", "repeat", "tile", "broadcast_to", "expand_dims", "squeeze", "swapaxes", "copy"),
}
"""What they return are operands, bit for bit."""
CHOOSES = {"max", "min", "maximum", "minimum", "clip", "negative", "abs", "absolute", "sort"}
"""What they return is the value of an operand; the sign of a zero is free."""
COMPARES = {"argmax", "argmin", "less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "any", "all"}
ELEMENTWISE = {
    *("where", "astype", "add", "subtract", "multiply", "divide", "square", "sqrt", "exp", "log", "negative", "abs"),
    *("maximum", "minimum", "less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
    *(
        "invert",
        "bitwise_and",
        "bitwise_or",
        "logical_and",
        "logical_or",
        "logical_not",
        "floor_divide",
        "remainder",
        "tanh",
        "isnan",
        "isfinite",
    ),
}
"""Operations of one element and its like; they may run on fewer of them."""
SUMS = {"sum", "mean", "cumsum"}
KNOWN = MOVES | CHOOSES | COMPARES | ELEMENTWISE | SUMS
"""What can be tried; anything else is inconclusive."""

STEPS = {"astype": 0.0, **dict.fromkeys(("add", "subtract", "multiply", "square"), 0.5)}
"""Error before the result's own rounding, in ULP of float32: IEEE's half for arithmetic, none for a conversion."""
DIVISION = 2.0
"""The same of quotients and roots: CUDA's approximate ones are within 2 ULP (CUDA C++ Programming Guide, 16.1)."""
FUNCTIONS = 4.0
"""The same of exp and the like: NumPy's own vectorised exp errs by 2.52, XLA's on a CPU by 2."""
SPREAD = 2.0
"""Error of a float32 sum of n terms, in ULP of float32 of the sum of their sizes over the root of n, in any order: an
addition errs by 0.29 ULP on average, so that this is more than six standard deviations of a sequential sum."""
SMALLEST = 2.0**-126
"""Absolute: accelerators flush what is below the smallest normal number to zero."""


def allowed_steps(operation: Operation) -> float:
    """ULP of float32 that an honest device may err by before it rounds to the declared dtype."""
    if operation.name in SUMS:
        return SPREAD * sqrt(terms(operation)) + (DIVISION if operation.name == "mean" else 0.0)
    if operation.name in ("divide", "sqrt"):
        return DIVISION
    return STEPS.get(operation.name, FUNCTIONS)


def terms(operation: Operation) -> int:
    """How many numbers go into one of a reduction's results."""
    shape, axis = operation.operands[0].shape, dict(operation.keywords).get("axis")
    return int(np.prod(shape)) if axis is None else shape[axis]
