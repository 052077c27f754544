"""The `numpy` engine with its sums in another order, or with company in the batch: other roundings, the same maths.

What an accelerator is free to choose: the order of a contraction, the number of its partial sums, the width
of the accumulator, and the rows that share a matrix multiplication. Everything else is `numpy_engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from parity.device.engines import numpy_engine as base
from parity.device.engines.lanes import with_lanes


@dataclass(frozen=True)
class Order:
    """How a sum of n terms is taken.

    Args:
        index: n to the order of the terms, int64 [n].
        parts: partial sums, added one after the other.
        accumulator: dtype of the running total; float32 or wider, or the result is no clean one.
    """

    index: Callable[[int], np.ndarray] = np.arange
    parts: int = 1
    accumulator: Any = np.float32

    def contract(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """left [..., S, n] times right [..., n, out], float32."""
        places = self._places(left.shape[-1])
        return self._total(_wide(left, self)[..., one] @ _wide(right, self)[..., one, :] for one in places)

    def reduce(self, values: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
        """The sum along one axis, float32."""
        values = np.moveaxis(_wide(values, self), axis, -1)
        total = self._total(values[..., one].sum(axis=-1) for one in self._places(values.shape[-1]))
        return np.expand_dims(total, axis) if keepdims else total

    def _places(self, count: int) -> list[np.ndarray]:
        return np.array_split(self.index(count), min(self.parts, count))

    def _total(self, partial: Iterator[np.ndarray]) -> np.ndarray:
        total: np.ndarray = next(partial).astype(self.accumulator)
        for one in partial:
            total = (total + one).astype(self.accumulator)
        return total.astype(np.float32)


def engine(name: str, order: Order, lanes: int = 1) -> SimpleNamespace:
    """An engine that sums in this order and runs `lanes` copies of the sequence as one batch.

    See `parity.device.engines.lanes` for the batch.
    """
    kind: type[Reordered] = type("Reordered", (Reordered,), {"__slots__": (), "order": order})

    def array(value: np.ndarray, dtype: Any = None) -> Any:
        return kind.again(base.array(value, dtype))

    def zeros(shape: tuple[int, ...], dtype: Any) -> Any:
        return kind.again(base.zeros(shape, dtype))

    return with_lanes(SimpleNamespace(NAME=name, array=array, zeros=zeros, host=base.host), lanes)


class Reordered(base.Array):
    """An array whose contractions, sums and means follow `order`; every other operation is its parent's."""

    __slots__ = ()
    order = Order()

    @classmethod
    def again(cls, value: base.Array) -> Reordered:
        """The same values under this class, so that the next operation comes here too."""
        return cls(value.held, value.dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Reordered:
        if ufunc is not np.matmul:
            return self.again(super().__array_ufunc__(ufunc, method, *inputs, **kwargs))
        left, right = (one.held for one in inputs)
        with np.errstate(all="ignore"):
            return self.again(base._round(_contract(self.order, left, right), base._declared(inputs)))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Reordered:
        if func not in (np.sum, np.mean) or args[0].held.dtype.kind != "f":
            return self.again(super().__array_function__(func, types, args, kwargs))
        values = args[0].held
        count = values.shape[kwargs["axis"]] if func is np.mean else 1
        with np.errstate(all="ignore"):
            return self.again(base._round(self.order.reduce(values, **kwargs) / np.float32(count), args[0].dtype))

    def __getitem__(self, index: Any) -> Reordered:
        return self.again(super().__getitem__(index))

    def astype(self, dtype: Any) -> Reordered:
        """As the parent's."""
        return self.again(super().astype(dtype))

    def reshape(self, *shape: int) -> Reordered:
        """As the parent's."""
        return self.again(super().reshape(*shape))

    def transpose(self, *axes: int) -> Reordered:
        """As the parent's."""
        return self.again(super().transpose(*axes))


def _wide(values: np.ndarray, order: Order) -> np.ndarray:
    return values.astype(np.result_type(order.accumulator, np.float32), copy=False)


def _contract(order: Order, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Rows of all sequences go through one multiplication where they share a weight."""
    if right.ndim > 2:
        return order.contract(left, right)
    return order.contract(left.reshape(-1, left.shape[-1]), right).reshape(*left.shape[:-1], right.shape[-1])
