"""What NumPy-style kernels compute, noted while they run on real arrays: the operations of somebody's own program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.seam import Operation

PRODUCTS = {"matmul", "dot", "einsum", "tensordot", "inner", "vdot"}
"""Matrix multiplications: those are tried by shape."""
_REDUCED = {"add": "sum", "maximum": "max", "minimum": "min", "logical_or": "any", "logical_and": "all"}
_METHODS = ("sum", "mean", "max", "min", "argmax", "argmin", "any", "all", "cumsum", "take", "repeat", "squeeze")
_NOTED: ContextVar[dict[Operation, None] | None] = ContextVar("noted", default=None)


def record(kernel: Callable[..., Any], *arguments: Any) -> list[Operation]:
    """Every distinct operation of one call, in order, matrix multiplications left out.

    Args:
        kernel: NumPy calls, methods and indexing on its arrays.
        arguments: arrays, and tuples, lists and dicts of them, are watched; anything else is passed as it is. They are
            copied first.

    Returns:
        what `parity ops` tries; static shapes only: an index by a mask that is read is not among them.
    """
    with _noting() as noted:
        kernel(*map(_watched, arguments))
    return list(noted)


@contextmanager
def _noting() -> Iterator[dict[Operation, None]]:
    noted: dict[Operation, None] = {}
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


class Recorded(np.ndarray):
    """An array whose operations are noted while a `record` runs."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out")
        given = {name: value for name, value in kwargs.items() if name != "out"}
        plain = [_bare(one) for one in inputs]
        with np.errstate(all="ignore"):
            made = getattr(ufunc, method)(*plain, **{name: _bare(value) for name, value in kwargs.items()})
        name = {"__call__": ufunc.__name__, "reduce": _REDUCED.get(ufunc.__name__, f"{ufunc.__name__}.reduce")}
        said = {
            key: value for key, value in given.items() if key in ("axis", "keepdims") and value not in (None, False)
        }
        _note(name.get(method, f"{ufunc.__name__}.{method}"), plain, said, made)
        return out[0] if out else _watched(made)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        plain, named = _bare(tuple(args)), {name: _bare(value) for name, value in kwargs.items()}
        made = func(*plain, **named)
        _note(func.__name__, plain, named, made)
        return _watched(made)

    def __getitem__(self, index: Any) -> Any:
        made = np.asarray(self)[_bare(index)]
        if not _masks(_bare(index)):
            _note("getitem", (np.asarray(self), _bare(index)), {}, made)
        return made.view(Recorded) if isinstance(made, np.ndarray) else made

    def __setitem__(self, index: Any, value: Any) -> None:
        np.asarray(self)[_bare(index)] = _bare(value)
        _note("setitem", (np.asarray(self), _bare(index), _bare(value)), {}, np.asarray(self))

    def astype(self, dtype: Any, *_rest: Any, **_options: Any) -> Any:
        """Noted where it is another dtype."""
        made = np.asarray(self).astype(dtype)
        if made.dtype != self.dtype:
            _note("astype", (np.asarray(self), made.dtype.name), {}, made)
        return _watched(made)

    def reshape(self, *shape: Any, **_options: Any) -> Any:
        """Noted with the sizes that come out."""
        made = np.asarray(self).reshape(*shape)
        _note("reshape", (np.asarray(self), *made.shape), {}, made)
        return made.view(Recorded)

    def transpose(self, *axes: Any) -> Any:
        """Noted with every axis by its number."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        order = tuple(order or range(self.ndim)[::-1])
        made = np.asarray(self).transpose(order)
        _note("transpose", (np.asarray(self), *order), {}, made)
        return made.view(Recorded)

    @property
    def T(self) -> Any:
        """`transpose()`."""
        return self.transpose()


def _method(name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: getattr(np, name)(self, *args, **kwargs)


for _name in _METHODS:
    setattr(Recorded, _name, _method(_name))


def _note(name: str, arguments: Any, keywords: dict[str, Any], made: Any) -> None:
    noted = _NOTED.get()
    if noted is not None and name not in PRODUCTS:
        noted[Operation.of({"true_divide": "divide"}.get(name, name), arguments, keywords, made)] = None


def _watched(value: Any) -> Any:
    """Copies of arrays that note what is done with them."""
    if isinstance(value, dict):
        return {name: _watched(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(_watched, value))
    return np.array(value).view(Recorded) if isinstance(value, np.ndarray | np.generic) else value


def _bare(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_bare, value))
    return np.asarray(value) if isinstance(value, Recorded) else value


def _masks(index: Any) -> bool:
    """Whether an index reads by a mask: how much comes out is in the values."""
    entries: tuple[NDArray[Any], ...] = index if isinstance(index, tuple) else (index,)
    return any(isinstance(one, np.ndarray) and one.dtype.kind == "b" for one in entries)
