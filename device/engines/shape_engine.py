"""An engine that computes nothing: arrays are shapes and dtypes, and what a run multiplies is noted.

It runs the very kernels and the very pipeline, so that the device's own code says what it would compile. What
`host` gives back is one number throughout, `ShapeEngine.answer`: the ids and lengths that the host loop continues with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np

from parity.device.engines.shape_rules import (
    BFLOAT16,
    BOOL,
    FLOAT32,
    LOGICAL,
    declared,
    result_dtype,
    result_shape,
    shape_of,
)
from parity.device.kernels.collectives import Groups
from parity.device.sharding import Sharding
from parity.seam import Gemm, Operation

Made = TypeVar("Made", bound="Shape | list[Shape]")
ON_HOST = ("getitem", "setitem", "reshape", "transpose")
"""What engines do on the host outside a program."""
_NARROW = {np.dtype(np.float64): FLOAT32, np.dtype(np.int64): np.dtype(np.int32)}


class Shape(np.lib.mixins.NDArrayOperatorsMixin):
    """An array without values.

    Args:
        shape: sizes of the axes.
        dtype: the declared dtype.
        engine: where multiplications are noted.
        values: the narrowest dtype that holds all values, `dtype` where None; a bfloat16 array cast to float32
            keeps bfloat16 here.
        name: of the weight that this array is, or is a part of; empty for everything computed.
    """

    __slots__ = ("dtype", "engine", "name", "shape", "values")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype,
        engine: ShapeEngine | None,
        values: np.dtype | None = None,
        name: str = "",
    ) -> None:
        self.shape, self.dtype, self.engine = tuple(map(int, shape)), dtype, engine
        self.values, self.name = values or dtype, name

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def T(self) -> Shape:
        """The axes in reverse order."""
        return self.transpose(*reversed(range(self.ndim)))

    def __repr__(self) -> str:
        return f"Shape({list(self.shape)}, {self.dtype.name})"

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Shape:
        if method != "__call__" or kwargs:
            raise NotImplementedError(f"numpy.{ufunc.__name__} with {method} {sorted(kwargs)} is outside the dialect")
        if ufunc is np.matmul:
            return self._noting().multiply(*inputs)
        shape = np.broadcast_shapes(*map(shape_of, inputs))
        made = Shape(shape, BOOL if ufunc in LOGICAL else declared(inputs), self.engine)
        return self._noted(made, ufunc.__name__, inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Shape | list[Shape]:
        made: Shape | list[Shape]
        if func is np.split:
            parts = _stand_in(self), *args[1:]
            made = [self._moved(part.shape) for part in np.split(*parts, **kwargs)]
        elif func in (np.take, np.zeros_like):
            first: Shape = args[0]
            made = first._moved(result_shape(func, args, kwargs))
        else:
            made = Shape(result_shape(func, args, kwargs), result_dtype(func, args), self.engine)
        return self._noted(made, func.__name__, args, **kwargs)

    def __getitem__(self, index: Any) -> Shape:
        return self._noted(self._at(index), "getitem", (self, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        np.broadcast_to(_stand_in(value), self._at(index).shape)  # ValueError where it does not fit
        self._noted(self, "setitem", (self, index, value))

    @staticmethod
    def run_program(kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Where `parity.device.kernels.program` hands over a call."""
        return arguments[0].engine.run_program(kernel, arguments)

    def all_reduce(self, groups: Groups) -> Shape:
        """A sum over the ranks has the shape of each part."""
        return self

    def all_gather(self, axis: int, groups: Groups) -> Shape:
        """All ranks' parts along one axis."""
        sizes = list(self.shape)
        sharding = self._noting().sharding
        sizes[axis] *= len(groups[0]) if groups else sharding.ranks if sharding else 1
        return self._moved(tuple(sizes))

    def astype(self, dtype: Any) -> Shape:
        """Another dtype; a cast to float32 changes no value."""
        wanted = np.dtype(dtype)
        made = Shape(self.shape, wanted, self.engine, self.values if wanted == FLOAT32 else wanted, self.name)
        return made if wanted == self.dtype else self._noted(made, "astype", (self, wanted.name))

    def copy(self) -> Shape:
        """The same: nothing is ever written."""
        return self

    def reshape(self, *shape: int) -> Shape:
        """Another shape of as many elements."""
        return self._noted(self._moved(_stand_in(self).reshape(*shape).shape), "reshape", (self, *shape))

    def transpose(self, *axes: int) -> Shape:
        """The axes in this order."""
        return self._noted(self._moved(_stand_in(self).transpose(*axes).shape), "transpose", (self, *axes))

    def _noting(self) -> ShapeEngine:
        """Where multiplications are noted; a weight that is not on an engine yet has nowhere."""
        if self.engine is None:
            raise TypeError(f"{self!r} is not on an engine")
        return self.engine

    def _noted(self, made: Made, name: str, arguments: tuple[Any, ...], **keywords: Any) -> Made:
        if self.engine is not None:
            self.engine.note(name, arguments, keywords, made)
        return made

    def _at(self, index: Any) -> Shape:
        return self._moved(_stand_in(self)[_stand_in(index)].shape)

    def _moved(self, shape: tuple[int, ...]) -> Shape:
        return Shape(shape, self.dtype, self.engine, self.values, self.name)


class ShapeEngine:
    """The functions of an engine, and where the notes of a run go. With ranks, everything is one rank's.

    Args:
        multiplied: called with every multiplication and the name of the weight it reads, empty for none.
        called: called with the kernel and the arguments of every program; programs inside a program are part of it.
        operated: called with every operation of a program that is no matrix multiplication.
    """

    NAME = "shapes"

    def __init__(
        self,
        multiplied: Callable[[Gemm, str], None],
        called: Callable[[Any, tuple[Any, ...]], None],
        operated: Callable[[Operation], None] = lambda operation: None,
    ) -> None:
        self._multiplied, self._called, self._operated = multiplied, called, operated
        self.answer, self._inside = 0, False
        self.sharding: Sharding | None = None

    def array(self, value: Any, dtype: Any = None) -> Shape:
        """The shape of a host array as an engine would hold it."""
        floating = value.dtype == BFLOAT16 or value.dtype.kind == "f"
        held = np.dtype(dtype) if dtype is not None and floating else _NARROW.get(value.dtype, value.dtype)
        return Shape(value.shape, held, self, name=getattr(value, "name", ""))

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Shape:
        """A cache's shape."""
        return Shape(shape, np.dtype(dtype), self)

    def host(self, value: Shape) -> np.ndarray:
        """`answer` throughout, in the dtype that every engine's `host` gives."""
        return np.full(value.shape, self.answer, np.int64 if value.dtype.kind == "i" else value.dtype)

    def spread(self, sharding: Sharding) -> ShapeEngine:
        """This engine as one of several ranks."""
        self.sharding = sharding
        return self

    def shard(self, parts: Sequence[Any], dtype: Any = None) -> Shape:
        """One rank's part of a weight."""
        return self.array(parts[0], dtype)

    def hosts(self, value: Shape) -> list[np.ndarray]:
        """`host` of every rank."""
        return [self.host(value)] * (self.sharding.ranks if self.sharding else 1)

    def run_program(self, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Note the outermost program and run it as plain Python."""
        if self._inside:
            return kernel(*arguments)
        self._called(kernel, arguments)
        self._inside = True
        try:
            return kernel(*arguments)
        finally:
            self._inside = False

    def note(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], made: Any) -> None:
        """Note one operation, unless it is the host's: what only moves data outside a program."""
        if self._inside or name not in ON_HOST:
            self._operated(Operation.of(name, arguments, keywords, made))

    def multiply(self, left: Shape, right: Shape) -> Shape:
        """The shape of left [..., M, K] times right [..., K, N]; the multiplication is noted."""
        (rows, inner), columns = left.shape[-2:], right.shape[-1]
        if inner != right.shape[-2]:
            raise ValueError(f"matmul of {list(left.shape)} and {list(right.shape)}")
        outer, dtype = np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), declared((left, right))
        values = BFLOAT16 if left.values == right.values == BFLOAT16 else FLOAT32
        one_weight = right.ndim == 2  # the rows of all sequences then share one multiplication
        batch, m = (1, prod(outer) * rows) if one_weight else (prod(outer), rows)
        shared = batch > 1 and prod(left.shape[:-2]) == 1
        self._multiplied(Gemm(m, inner, columns, batch, shared, dtype.name, values.name), right.name)
        return Shape((*outer, rows, columns), dtype, self)


def _stand_in(value: Any) -> Any:
    """An array without memory that NumPy can index, reshape and broadcast."""
    if isinstance(value, Shape):
        return np.broadcast_to(np.zeros((), bool if value.dtype == BOOL else np.int8), value.shape)
    return type(value)(map(_stand_in, value)) if isinstance(value, tuple | list) else value
