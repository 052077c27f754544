"""What shape and dtype a NumPy function of the dialect returns, from shapes and dtypes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

BFLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
INT32, BOOL = np.dtype(np.int32), np.dtype(bool)
LOGICAL = {
    *(np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal),
    *(np.logical_and, np.logical_or, np.logical_not, np.isfinite, np.isnan),
}
"""Functions of elements that return truth values."""

Axes = tuple[int, ...]


def result_shape(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Axes:
    """The shape of `func(*args, **kwargs)`.

    Raises:
        NotImplementedError: the function is outside the dialect.
        ValueError: the shapes do not fit each other.
    """
    if func not in _SHAPES:
        raise NotImplementedError(f"numpy.{func.__name__} is outside the dialect")
    return _SHAPES[func](*args, **kwargs)


def result_dtype(func: Callable[..., Any], args: Sequence[Any]) -> np.dtype:
    """The dtype of `func(*args, ...)`."""
    if func in _FIXED:
        return _FIXED[func]
    operands = {np.where: args[1:], np.concatenate: args[0]}.get(func, args[:1])
    found = declared(operands)
    return INT32 if found == BOOL and func in (np.sum, np.cumsum) else found


def declared(operands: Sequence[Any]) -> np.dtype:
    """The dtype of an operation on elements: floats as on every engine (float32 wins), whole numbers int32."""
    dtypes = [one.dtype for one in operands if hasattr(one, "dtype")]
    floats = [one for one in dtypes if one == BFLOAT16 or one.kind == "f"]
    if floats or any(isinstance(one, float) for one in operands):
        return BFLOAT16 if floats and all(one == BFLOAT16 for one in floats) else FLOAT32
    whole = any(one.kind in "iu" for one in dtypes) or any(type(one) is int for one in operands)
    return INT32 if whole else BOOL


def shape_of(value: Any) -> Axes:
    """The shape of an array or a number, without asking NumPy, which would ask back."""
    return getattr(value, "shape", ())


def _broadcast(*arrays: Any) -> Axes:
    return np.broadcast_shapes(*map(shape_of, arrays))


def _take(array: Any, ids: Any, axis: int) -> Axes:
    axis %= len(array.shape)
    return (*array.shape[:axis], *shape_of(ids), *array.shape[axis + 1 :])


def _take_along_axis(array: Any, ids: Any, axis: int) -> Axes:
    axis %= len(array.shape)
    left, right = list(array.shape), list(ids.shape)
    left[axis], right[axis], count = 1, 1, ids.shape[axis]
    outer = np.broadcast_shapes(tuple(left), tuple(right))
    return (*outer[:axis], count, *outer[axis + 1 :])


def _concatenate(arrays: Sequence[Any], axis: int = 0) -> Axes:
    first = list(arrays[0].shape)
    for one in arrays[1:]:
        others = [size for place, size in enumerate(one.shape) if place != axis % len(first)]
        if others != [size for place, size in enumerate(first) if place != axis % len(first)]:
            raise ValueError(f"concatenate along {axis}: {[list(each.shape) for each in arrays]}")
    first[axis] = sum(one.shape[axis] for one in arrays)
    return tuple(first)


def _reduce(array: Any, axis: int | None = None, keepdims: bool = False) -> Axes:
    axes = range(len(array.shape)) if axis is None else [axis % len(array.shape)]
    kept = [1 if place in axes else size for place, size in enumerate(array.shape) if keepdims or place not in axes]
    return tuple(kept)


def _unchanged(array: Any, **_axis: int) -> Axes:
    return tuple(array.shape)


_SHAPES: dict[Callable[..., Any], Callable[..., Axes]] = {
    np.where: _broadcast,
    np.take: _take,
    np.take_along_axis: _take_along_axis,
    np.concatenate: _concatenate,
    np.cumsum: _unchanged,
    np.zeros_like: _unchanged,
    **dict.fromkeys((np.max, np.min, np.sum, np.mean, np.any, np.all, np.argmax), _reduce),
}
_FIXED = {np.any: BOOL, np.all: BOOL, np.argmax: INT32}
