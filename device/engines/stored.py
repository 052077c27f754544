"""The `numpy` engine over weights that stay in their files: a part of a matrix is widened when it is multiplied.

Parts of a product may round otherwise in the last bit than the whole; all else is `numpy_engine`.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from parity.device import stored
from parity.device.engines import numpy_engine as base

PART = 2**25
"""Numbers of a matrix that are widened at a time: 128 MiB of float32."""


class Stored(base.Array):
    """A weight in a file: [in, out], [E, in, out] or a table [V, H].

    Args:
        source: indexed like an array, in its stored dtype.
        rounded: the dtype that its values are rounded to.
        dtype: the declared one, as wide or wider.
    """

    __slots__ = ("rounded", "source")

    def __init__(self, source: Any, rounded: np.dtype, dtype: np.dtype) -> None:
        self.source, self.rounded, self.dtype = source, rounded, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        shape: tuple[int, ...] = self.source.shape
        return shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def held(self) -> np.ndarray:  # type: ignore[override]
        """All of it, widened."""
        return self.part(...)

    def part(self, index: Any) -> np.ndarray:
        """A part of it, widened."""
        read = np.asarray(self.source[index]).astype(base.FLOAT32, copy=False)
        stored.release(self.source)
        exact = self.rounded in (self.source.dtype, base.FLOAT32)
        return read if exact else base._round(read, self.rounded).held

    def astype(self, dtype: Any) -> base.Array:
        """Widening reads nothing yet."""
        if dtype is np.float32:
            return Stored(self.source, self.rounded, base.FLOAT32)
        return super().astype(dtype)

    def __getitem__(self, index: Any) -> base.Array:
        return base.Array(self.part(index), self.dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> base.Array:
        if ufunc is not np.matmul or inputs[1] is not self or isinstance(inputs[0], Stored):
            return super().__array_ufunc__(ufunc, method, *inputs, **kwargs)
        rows = inputs[0].held
        product = self._experts(rows) if self.ndim == 3 else np.concatenate(list(self._columns(rows)), axis=-1)
        return base._round(product, base._declared(inputs))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> base.Array:
        if func is np.take and args[0] is self and kwargs == {"axis": 0}:
            return base.Array(self.part(args[1].held), self.dtype)
        return super().__array_function__(func, types, args, kwargs)

    def _experts(self, rows: np.ndarray) -> np.ndarray:
        """rows [1, T, in], or [E, T, in], to [E, T, out]."""
        return np.stack([rows[each % len(rows)] @ self.part(each) for each in range(self.shape[0])])

    def _columns(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """rows [..., in] to [..., out], some columns at a time."""
        step = max(1, PART // self.shape[0])
        for begin in range(0, self.shape[1], step):
            yield rows @ self.part(np.s_[:, begin : begin + step])


def engine() -> SimpleNamespace:
    """The engine: what lies in a file stays there."""

    def array(value: Any, dtype: Any = None) -> base.Array:
        if not stored.stays(value):
            return base.array(np.asarray(value), dtype)
        kept = np.dtype(dtype) if dtype is not None else value.dtype
        return Stored(value, kept, kept)

    return SimpleNamespace(NAME=base.NAME, array=array, zeros=base.zeros, host=base.host)
