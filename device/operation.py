"""One operation alone, compiled and run as those of a pass are."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.engines import AnyEngine
from parity.device.kernels.program import program
from parity.seam import Operation


def operate(operation: Operation, arrays: tuple[np.ndarray, ...], engine: AnyEngine) -> np.ndarray | list[np.ndarray]:
    """The results of one operation; see `parity.seam.Operate`."""
    made = carried_out(*map(engine.array, arrays), operation=operation)
    if isinstance(made, list | tuple):
        return [engine.host(one) for one in made]
    result: np.ndarray = engine.host(made)
    return result


def carried_out(*arrays: Any, operation: Operation) -> Any:
    """The operation as a program of its own; of `setitem` the array that it wrote to."""
    if operation.name != "setitem":
        return single(arrays[0], arrays[1:], operation)
    written(arrays[0], arrays[1:], operation)
    return arrays[0]


@program
def single(first: Any, rest: tuple[Any, ...], operation: Operation) -> Any:
    """What it makes."""
    return operation.apply(first, *rest)


@program
def written(first: Any, rest: tuple[Any, ...], operation: Operation) -> None:
    """Writes to its first operand, in place."""
    operation.apply(first, *rest)
