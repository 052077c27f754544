"""One operation of a program as data: NumPy's name, shapes, dtypes, axes, index and constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

import ml_dtypes
import numpy as np

_NARROW = {"int64": "int32", "float64": "float32"}
"""What devices hold instead."""


@dataclass(frozen=True)
class Operand:
    """An array that an operation takes or makes.

    Args:
        dtype: `bfloat16`, `float32`, `int32` or `bool`.
    """

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Cut:
    """A slice within an index."""

    start: int | None
    stop: int | None
    step: int | None

    def __str__(self) -> str:
        ends = "" if self.start is None else self.start, "" if self.stop is None else self.stop
        return "{}:{}".format(*ends) + ("" if self.step is None else f":{self.step}")


@dataclass(frozen=True)
class Operation:
    """One operation of a program, in NumPy's words: `numpy.NAME`, or `getitem`, `setitem`, `astype`, `reshape`,
    `transpose` of its first operand.

    Args:
        arguments: in order: `Operand`, `Cut`, numbers, names of dtypes, `None` and `...`, in tuples where NumPy takes
            a list, an index or a shape; `setitem` has the array, the index and the value.
        keywords: `axis`, `keepdims`, ….
        results: what it makes; of `setitem` the array that was written to.
    """

    name: str
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    results: tuple[Operand, ...]

    def __str__(self) -> str:
        said = [_said(one) for one in self.arguments] + [f"{name}={value}" for name, value in self.keywords]
        return f"{self.name}({', '.join(said)})"

    @classmethod
    def of(cls, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> Operation:
        """The operation of a call in NumPy's words; `result` is one array or several, or what has shape and dtype."""
        results = result if isinstance(result, list | tuple) else [result]
        given, place = list(arguments), _axis_place(name)
        named = {key: value for key, value in keywords.items() if value is not None}
        if place is not None and len(given) > place:
            named["axis"] = given.pop(place)
        return cls(name, _plain(tuple(given)), tuple(sorted(named.items())), tuple(map(_operand, results)))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The arrays it takes, in order."""
        return tuple(_leaves(self.arguments))

    def apply(self, *arrays: Any, numpy: Any = np) -> Any:
        """Carry it out on arrays in the place of its operands.

        Args:
            numpy: another namespace of NumPy's functions, such as `jax.numpy`.

        Returns:
            what it makes; of `setitem` the array that was written to, in place.
        """
        rest = iter(arrays)
        first, *more = (_filled(one, rest) for one in self.arguments)
        if self.name == "getitem":
            return first[more[0]]
        if self.name == "setitem":
            first[more[0]] = more[1]
            return first
        if self.name in ("reshape", "transpose", "astype"):
            return getattr(first, self.name)(*map(_dtype, more))
        return getattr(numpy, self.name)(first, *more, **dict(self.keywords))


def _leaves(value: Any) -> Iterator[Operand]:
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, tuple):
            yield from _leaves(one)
        elif isinstance(one, Operand):
            yield one


def _filled(value: Any, arrays: Iterator[Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_filled(one, arrays) for one in value)
    if isinstance(value, Cut):
        return slice(value.start, value.stop, value.step)
    return next(arrays) if isinstance(value, Operand) else value


def _dtype(value: Any) -> Any:
    """The dtype of this name; bfloat16 is none of NumPy's own."""
    if not isinstance(value, str):
        return value
    return np.dtype(ml_dtypes.bfloat16) if value == "bfloat16" else np.dtype(value)


def _said(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_said, value))}]"
    return "..." if value is ... else str(value)


@cache
def _axis_place(name: str) -> int | None:
    """Where a function of NumPy takes `axis` without its name; None where it does not."""
    try:
        names = list(signature(getattr(np, name)).parameters)
    except (AttributeError, TypeError, ValueError):
        return None
    return names.index("axis") if "axis" in names else None


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
