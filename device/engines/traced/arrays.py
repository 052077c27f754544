"""The arrays of a traced engine, outside any trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from parity.device.engines.traced.engine import Engine


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """An array on a machine, or one for each of its ranks.

    Args:
        buffer: the machine's; a program that writes to this array puts another one here.
        dtype: the declared dtype; the buffer holds bool as uint8.
    """

    __slots__ = ("buffer", "dtype", "shape")
    engine: Engine

    def __init__(self, buffer: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.buffer, self.shape, self.dtype = buffer, shape, dtype

    @classmethod
    def run_program(cls, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a kernel as one program; see `parity.device.kernels.program`."""
        return cls.engine.run(kernel, arguments) if cls.engine.whole else kernel(*arguments)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.engine.values(self)[0].astype(dtype or self.dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            raise NotImplementedError(f"numpy.{ufunc.__name__}.{method} is outside the dialect")
        return self.engine.run(_call, (ufunc, inputs, kwargs))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self.engine.run(_call, (func, args, kwargs))

    def __getitem__(self, index: Any) -> Array:
        return self.engine.moved(lambda mine, at: mine[at], self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.buffer = self.engine.moved(_changed, self, index, value).buffer

    def astype(self, dtype: Any) -> Array:
        """Convert, rounding to nearest even."""
        cast: Array = self.engine.run(_astype, (self, np.dtype(dtype)))
        return cast

    def reshape(self, *shape: int) -> Array:
        """The same values under another shape."""
        return self.engine.moved(lambda mine: mine.reshape(*shape), self)

    def transpose(self, *axes: int) -> Array:
        """The same values with the axes in this order."""
        return self.engine.moved(lambda mine: mine.transpose(*axes), self)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def _astype(value: Any, dtype: np.dtype) -> Any:
    return value.astype(dtype)


def _changed(held: np.ndarray, index: Any, value: Any) -> np.ndarray:
    changed = held.copy()
    changed[index] = value
    return changed
