"""Smaller operations in the place of those that do not fit."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from parity.ops.kinds import ELEMENTWISE
from parity.seam import Operand, Operation

CUT = 2**24
"""Elements of what works element by element, or takes rows of a table: no tile is as large, and more take long."""


def cut_to(operation: Operation, limit: int) -> Operation | None:
    """The operation, on fewer elements where it can be; None where it cannot and is larger than `limit`."""
    if largest(operation) <= min(limit, CUT):
        return operation
    return _cut(operation, min(limit, CUT)) or (operation if largest(operation) <= limit else None)


def _cut(operation: Operation, limit: int) -> Operation | None:
    """Along the first axis of a table, or the longest one of an operation on elements."""
    if operation.name == "take" and dict(operation.keywords).get("axis") == 0:
        table, *rest = operation.arguments
        rows = limit * table.shape[0] // prod(table.shape)
        small = replace(operation, arguments=(replace(table, shape=(rows, *table.shape[1:])), *rest))
        return small if rows and largest(small) <= limit else None
    if operation.name not in ELEMENTWISE:
        return None
    shape = operation.results[0].shape
    axis = int(np.argmax(shape)) - len(shape)
    size = limit * shape[axis] // prod(shape)

    def smaller(one: Any) -> Any:
        if not isinstance(one, Operand) or len(one.shape) < -axis or one.shape[axis] != shape[axis]:
            return one
        return replace(one, shape=(*one.shape[:axis], size, *one.shape[len(one.shape) + axis + 1 :]))

    small = replace(
        operation, arguments=tuple(map(smaller, operation.arguments)), results=tuple(map(smaller, operation.results))
    )
    return small if size and largest(small) <= limit else None


def largest(operation: Operation) -> int:
    """Elements of its largest array."""
    return max(prod(one.shape) for one in (*operation.operands, *operation.results))
