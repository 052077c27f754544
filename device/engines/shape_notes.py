"""An operation on shapes as `parity.seam.Operation` says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parity.seam import Cut, Operand, Operation

_NARROW = {"int64": "int32", "float64": "float32"}


def noted(name: str, arguments: Sequence[Any], keywords: dict[str, Any], result: Any) -> Operation:
    """The operation of this name, `result` being one array or several."""
    results = result if isinstance(result, list | tuple) else [result]
    return Operation(name, _plain(tuple(arguments)), tuple(sorted(keywords.items())), tuple(map(_operand, results)))


def _operand(array: Any) -> Operand:
    return Operand(tuple(map(int, array.shape)), _NARROW.get(array.dtype.name, array.dtype.name))


def _plain(value: Any) -> Any:
    """Arrays as operands, slices and dtypes in words, numbers as they are."""
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    if isinstance(value, slice):
        return Cut(value.start, value.stop, value.step)
    if isinstance(value, np.generic):
        return value.item()
    return _operand(value) if hasattr(value, "shape") else value
