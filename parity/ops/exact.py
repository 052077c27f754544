"""What an operation should give: operands bit for bit where it moves data, float64 where it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parity.ops.kinds import CHOOSES, DTYPES, MOVES, SUMS
from parity.seam import Operation

_BITS = {2: np.uint16, 4: np.uint32}


def expected(operation: Operation, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results, of the declared dtype where they are moved, else float64, int64 or bool."""
    with np.errstate(all="ignore"):
        given = _moved(operation, arrays) if operation.name in MOVES else _computed(operation, arrays)
    return [np.asarray(one) for one in given] if isinstance(given, list | tuple) else [np.asarray(given)]


def condition(operation: Operation, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """The size that errors of a sum are measured by: the sum of its terms' sizes, float64; None for anything else."""
    if operation.name not in SUMS:
        return None
    sizes: np.ndarray = operation.apply(np.abs(arrays[0].astype(np.float64)))
    return sizes


def written_twice(operation: Operation, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """Where a `setitem` writes several values: any of them may stay. None for anything else."""
    if operation.name != "setitem":
        return None
    read = replace(operation, name="getitem", arguments=operation.arguments[:2])
    index = read.apply(_Index(), *arrays[1 : len(read.operands)])
    count = np.zeros(arrays[0].shape, np.int32)
    np.add.at(count, index, 1)
    twice: np.ndarray = count > 1
    return twice


class _Index:
    """Gives the index that it is asked for."""

    def __getitem__(self, index: Any) -> Any:
        return index


def _moved(operation: Operation, arrays: Sequence[np.ndarray]) -> Any:
    """Carried out on the bits: no arithmetic, no NaN that is not its own."""
    dtype = DTYPES[operation.results[0].dtype]
    if dtype.kind in "ib":
        return operation.apply(*(one.copy() for one in arrays))
    bits = _BITS[dtype.itemsize]
    values = [
        one.copy() if one.dtype.kind in "iub" else np.ascontiguousarray(one.astype(dtype)).view(bits) for one in arrays
    ]
    made = _with_scalars(operation, lambda scalar: np.asarray(scalar).astype(dtype).view(bits)[()]).apply(*values)
    return [one.view(dtype) for one in made] if isinstance(made, list | tuple) else np.asarray(made, bits).view(dtype)


def _computed(operation: Operation, arrays: Sequence[np.ndarray]) -> Any:
    """Carried out in float64 and int64; the program's own numbers are float32, or the dtype that is chosen from."""
    wide = [
        one if one.dtype.kind == "b" else one.astype(np.int64 if one.dtype.kind == "i" else np.float64)
        for one in arrays
    ]
    if operation.name == "astype":
        kind = DTYPES[operation.results[0].dtype].kind
        return np.trunc(wide[0]).astype(np.int64) if kind == "i" else wide[0] != 0 if kind == "b" else wide[0] * 1.0
    dtype = DTYPES[operation.results[0].dtype] if operation.name in CHOOSES else DTYPES["float32"]
    return _with_scalars(operation, lambda scalar: float(np.asarray(scalar).astype(dtype))).apply(*wide)


def _with_scalars(operation: Operation, rounded: Any) -> Operation:
    """The operation with its numbers as the program holds them: values, no places and sizes."""
    places = {"where": (1, 2), "setitem": (2,)}.get(operation.name)
    if places is None and operation.name in MOVES:
        return operation
    kept = (bool,) if places else (bool, int)  # a whole number beside numbers that are moved becomes one of them
    arguments = tuple(
        rounded(one)
        if isinstance(one, int | float) and not isinstance(one, kept) and number in (places or (number,))
        else one
        for number, one in enumerate(operation.arguments)
    )
    return replace(operation, arguments=arguments)
