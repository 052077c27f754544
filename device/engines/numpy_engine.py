"""The `numpy` engine: kernels run eagerly, with the bfloat16 arithmetic of a compiler.

Eager NumPy on ml_dtypes arrays is not that: its matmul returns float32, and its sum adds in
bfloat16 and saturates at 256. Here every operation computes in float32 and rounds once to the
dtype it declares. The other engines take the same two NumPy protocols as their entrance.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import lru_cache
from math import copysign
from typing import Any

import ml_dtypes
import numpy as np

NAME = "numpy"
BFLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
EIGHTS = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
"""What caches may keep. Such values are moved and widened; nothing is computed in them."""
_NARROW = {np.dtype(np.float64): FLOAT32, np.dtype(np.int64): np.dtype(np.int32)}
# What these return are operands, never new values: nothing to round.
_MOVES = {np.where, np.take, np.take_along_axis, np.concatenate, np.max, np.min}
_DIALECT = _MOVES | {np.sum, np.mean, np.any, np.argmax, np.cumsum}
_REDUCED = {np.sum: np.add.reduce, np.max: np.maximum.reduce, np.min: np.minimum.reduce, np.any: np.logical_or.reduce}
"""What these functions call of NumPy, given an axis: at the sizes of tiny models the way there costs more."""
_SILENT = copy_context()
"""Where an overflow to infinity is without a word, as on an accelerator; each call runs in a copy of it."""
_SILENT.run(np.seterr, all="ignore")


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """An array whose values of bfloat16 and fp8 are kept as float32, so that no operation pays for a cast.

    Args:
        held: float32, int32 or bool values, already representable in `dtype`.
        dtype: the declared dtype; differs from `held.dtype` for bfloat16 and fp8 only.
    """

    __slots__ = ("dtype", "held")

    def __init__(self, held: np.ndarray, dtype: np.dtype) -> None:
        self.held, self.dtype = held, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.held.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.held.ndim

    def __repr__(self) -> str:
        return f"Array({self.held!r}, dtype={self.dtype.name})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.held.astype(dtype or self.dtype, copy=copy is not False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Array:
        if method != "__call__" or kwargs:
            raise NotImplementedError(f"numpy.{ufunc.__name__} with {method} {sorted(kwargs)} is outside the dialect")
        held = [one.held if type(one) is Array else _held(one) for one in inputs]
        return _round(_SILENT.copy().run(ufunc, *held), _declared(inputs))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Array:
        if func not in _DIALECT:
            raise NotImplementedError(f"numpy.{func.__name__} is outside the dialect")
        declared = _declared(args[0] if func is np.concatenate else args)
        plain = _REDUCED.get(func, func) if len(args) == 1 and "axis" in kwargs else func
        if func in _MOVES:
            return _as(_SILENT.copy().run(plain, *[_fit(one, declared) for one in args], **kwargs), declared)
        return _round(_SILENT.copy().run(plain, *map(_held, args), **kwargs), declared)

    def __getitem__(self, index: Any) -> Array:
        return Array(self.held[_held(index)], self.dtype)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.held[_held(index)] = _round(np.asarray(_held(value)), self.dtype).held

    def astype(self, dtype: Any) -> Array:
        """Convert, rounding to nearest even; widening a bfloat16 costs nothing, its values are float32 already."""
        if dtype is np.float32 and self.held.dtype == FLOAT32:
            return Array(self.held, FLOAT32)
        declared = np.dtype(dtype)
        return _round(self.held.astype(_storage(declared), copy=False), declared)

    def reshape(self, *shape: int) -> Array:
        """The same values under another shape."""
        return Array(self.held.reshape(*shape), self.dtype)

    def transpose(self, *axes: int) -> Array:
        """The same values with the axes in this order."""
        return Array(self.held.transpose(*axes), self.dtype)


def array(value: np.ndarray, dtype: Any = None) -> Array:
    """Move a host array to this engine; floating values are rounded to `dtype` where one is given."""
    floating = value.dtype in (BFLOAT16, *EIGHTS) or value.dtype.kind == "f"
    declared = np.dtype(dtype) if dtype is not None and floating else _NARROW.get(value.dtype, value.dtype)
    # A copy: a host array that the caller keeps using must not change with the engine's, nor it with the caller's.
    return _round(value.astype(_storage(declared)), declared)


def zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of zeros."""
    return Array(np.zeros(shape, _storage(np.dtype(dtype))), np.dtype(dtype))


def host(value: Array) -> np.ndarray:
    """A copy on the host: float32, bfloat16 or fp8 of ml_dtypes, int64 or bool."""
    return value.held.astype(np.int64 if value.dtype.kind == "i" else value.dtype)


def _storage(declared: np.dtype) -> np.dtype:
    return FLOAT32 if declared is BFLOAT16 or declared in EIGHTS else declared


def _held(value: Any) -> Any:
    if isinstance(value, Array):
        return value.held
    return type(value)(map(_held, value)) if isinstance(value, tuple | list) else value


def _declared(operands: Any) -> np.dtype:
    """The float dtype of a result; scalars of Python follow the arrays, float32 wins over what is narrower."""
    declared = FLOAT32
    for one in operands:
        dtype: Any = getattr(one, "dtype", None)
        if dtype is BFLOAT16 or dtype in EIGHTS:
            declared = dtype
        elif dtype is not None and dtype.kind == "f":
            return FLOAT32
    return declared


def _fit(operand: Any, declared: np.dtype) -> Any:
    """A float of Python as the nearest value of `declared`."""
    return _nearest(operand, copysign(1, operand), declared) if isinstance(operand, float) else _held(operand)


@lru_cache
def _nearest(number: float, sign: float, declared: np.dtype) -> float:
    """Of a number whose sign is `sign`: 0 and -0 are equal, and are two."""
    return _SILENT.copy().run(lambda: float(np.float32(number).astype(declared)))


def _without_dispatch(name: str, ufunc: np.ufunc, turned: bool = False) -> None:
    """Let an operator of two arrays, or of one and a number, call its ufunc at once, not through NumPy's dispatch."""
    otherwise: Callable[[Array, Any], Array] = getattr(Array, name)

    def operator(self: Array, other: Any) -> Array:
        if type(self) is not Array:
            return otherwise(self, other)
        declared, mine, held = self.dtype, self.held, other
        if type(other) is Array:
            held = other.held
        elif type(other) is not float and type(other) is not int:
            return otherwise(self, other)
        if (declared is not FLOAT32 and declared is not BFLOAT16) or (
            held is not other and other.dtype is not declared
        ):
            declared = _declared((self, other))
        return _round(_SILENT.copy().run(ufunc, *((held, mine) if turned else (mine, held))), declared)

    setattr(Array, name, operator)


for _name, _ufunc in {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide}.items():
    _without_dispatch(f"__{_name}__", _ufunc)
    _without_dispatch(f"__r{_name}__", _ufunc, turned=True)
for _name, _ufunc in {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}.items():
    _without_dispatch(f"__{_name}__", _ufunc)


def _round(result: np.ndarray, declared: np.dtype) -> Array:
    """One rounding of a float result to `declared`; integers and booleans keep their own dtype."""
    if result.dtype is FLOAT32 and declared is FLOAT32:
        return Array(result, declared)
    if (declared is BFLOAT16 or declared in EIGHTS) and result.dtype.kind == "f":
        return Array(result.astype(declared).astype(FLOAT32), declared)
    return _as(result, declared)


def _as(result: np.ndarray, declared: np.dtype) -> Array:
    """A result that `declared` can represent."""
    if result.dtype is FLOAT32 and (declared is FLOAT32 or declared is BFLOAT16 or declared in EIGHTS):
        return Array(result, declared)
    if result.dtype.kind in "iub":
        declared = _NARROW.get(result.dtype, result.dtype)
    return Array(result.astype(_storage(declared), copy=False), declared)
