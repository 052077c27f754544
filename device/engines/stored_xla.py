"""The `xla` engine over weights that stay in their files: they enter a program as they are stored, and go after it.

Within it a part is widened when it is multiplied (`stored_products`). Parts of a product may round otherwise in the
last bit than the whole; all else is `xla_engine`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from parity.device import stored
from parity.device.engines import numpy_engine as base
from parity.device.engines import stored_products as products
from parity.device.engines import xla_engine


class Stored(xla_engine.Array):
    """A weight in a file, or what stands for its bytes within a program.

    Args:
        source: indexed like an array, in its stored dtype; under trace the bytes in their form.
        dtype: the declared one, as wide as the form's or wider.
    """

    __slots__ = ("form", "source")
    plain: type[xla_engine.Array]
    """The engine's other arrays."""

    def __init__(self, source: Any, form: products.Form, dtype: np.dtype) -> None:
        self.source, self.form, self.dtype = source, form, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.form.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.form.shape)

    @property
    def held(self) -> Any:  # type: ignore[override]
        """What enters a program: the bytes, read now."""
        return self.source if isinstance(self.source, jax.core.Tracer) else products.read(self.source, self.form.layout)

    def within(self, tracer: Any) -> Stored:
        """What stands for it within a program."""
        return type(self)(tracer, self.form, self.dtype)

    def whole(self) -> xla_engine.Array:
        """All of it, widened."""
        return self.plain(products.widened(self.held, self.form), self.dtype)

    def astype(self, dtype: Any) -> xla_engine.Array:
        """Widening reads nothing yet."""
        if np.dtype(dtype) == base.FLOAT32:
            return type(self)(self.source, self.form, base.FLOAT32)
        return self.whole().astype(dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.whole().__array__(dtype)

    def __getitem__(self, index: Any) -> xla_engine.Array:
        return self.whole()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        raise NotImplementedError("a weight in a file is written to by nobody")

    def reshape(self, *shape: int) -> xla_engine.Array:
        """As the parent's, of all of it."""
        return self.whole().reshape(*shape)

    def transpose(self, *axes: int) -> xla_engine.Array:
        """As the parent's, of all of it."""
        return self.whole().transpose(*axes)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> xla_engine.Array:
        if ufunc is not np.matmul or inputs[1] is not self or isinstance(inputs[0], Stored):
            return self.whole().__array_ufunc__(ufunc, method, *map(_whole, inputs), **kwargs)
        multiply = products.experts if self.ndim == 3 else products.columns
        product = multiply(base._held(inputs[0]), self.held, self.form)
        made: xla_engine.Array = self.plain(product, base.FLOAT32)._rounded(product, base._declared(inputs))
        return made

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> xla_engine.Array:
        if func is np.take and args[0] is self and kwargs == {"axis": 0} and self._by_rows():
            taken: xla_engine.Array = self.plain(products.taken(self.held, base._held(args[1]), self.form), self.dtype)
            return taken
        return self.whole().__array_function__(func, types, tuple(map(_whole, args)), kwargs)

    def _by_rows(self) -> bool:
        """Whether its first axis is that of its bytes."""
        return self.ndim == 3 or self.form.layout == "rows"


def engine() -> SimpleNamespace:
    """The engine: what lies in a file stays there."""
    machine = xla_engine.engine()
    kind: type[Stored] = type("Stored", (Stored, machine.kind), {"__slots__": (), "plain": machine.kind})

    def array(value: Any, dtype: Any = None) -> xla_engine.Array:
        if not stored.stays(value) or len(value.shape) < 2:  # vectors are small
            made: xla_engine.Array = machine.array(np.asarray(value), dtype)
            return made
        kept = np.dtype(dtype) if dtype is not None else value.dtype
        return kind(value, products.Form(products.layout(value), value.shape, kept), kept)

    def host(value: xla_engine.Array) -> np.ndarray:
        values: np.ndarray = machine.host(_whole(value))
        return values

    return SimpleNamespace(**vars(machine) | {"array": array, "host": host})


def _whole(value: Any) -> Any:
    """A weight in a file as an array like any other."""
    return value.whole() if isinstance(value, Stored) else value
