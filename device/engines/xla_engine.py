"""The `xla` engine: the same kernels compiled by JAX on XLA, with the arithmetic of the numpy engine.

bfloat16 values are kept as float32, as there, and every rounding is `reduce_precision`, which XLA may not drop as
it may a pair of conversions (`xla_allow_excess_precision`). Contractions take float32 operands at the highest
precision. Outside a program an array is indexed and reshaped on the host: that compiles nothing, whatever the shape.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from parity.device.engines import cpu_devices
from parity.device.engines import numpy_engine as base
from parity.device.engines.cpu_devices import FLAGS
from parity.device.engines.programs import Programs
from parity.device.sharding import Sharding

NAME = "xla"
CACHE_BYTES = 2**30
"""Of compiled programs kept on disk; the least recently used go first. A program of the tiny pair has 50 to 300 KB."""
_NARROW = ml_dtypes.finfo(ml_dtypes.bfloat16)


class Array(base.Array):
    """A value of XLA, concrete or under trace, in place of the numpy engine's.

    Writing to it replaces the value it holds: whoever holds the array sees what was written.
    """

    __slots__ = ()
    held: Any
    programs: Programs
    mesh = None

    def __init__(self, held: Any, dtype: np.dtype) -> None:
        super().__init__(held, dtype)

    @classmethod
    def of(cls, value: jax.Array, dtype: np.dtype) -> Array:
        """An array that a program made."""
        return cls(value, dtype)

    inside = of

    @staticmethod
    def spread(kernel: Callable[..., Any]) -> Callable[..., Any]:
        """As it is, on one device."""
        return kernel

    @classmethod
    def run_program(cls, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Compiled once for each signature; see `parity.device.kernels.program`."""
        return cls.programs.run(cls, kernel, arguments)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values: np.ndarray = np.array(self.held).astype(dtype or self.dtype, copy=False)
        return values

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Array:
        if method != "__call__" or kwargs:
            raise NotImplementedError(f"numpy.{ufunc.__name__} with {method} {sorted(kwargs)} is outside the dialect")
        exact = {"precision": lax.Precision.HIGHEST} if ufunc is np.matmul else {}
        result = getattr(jnp, ufunc.__name__)(*map(base._held, inputs), **exact)
        return self._rounded(result, base._declared(inputs))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Array:
        if func not in base._DIALECT:
            raise NotImplementedError(f"numpy.{func.__name__} is outside the dialect")
        declared = base._declared(args[0] if func is np.concatenate else args)
        same = getattr(jnp, func.__name__)
        if func in base._MOVES:
            return self._as(same(*(base._fit(one, declared) for one in args), **kwargs), declared)
        return self._rounded(same(*map(base._held, args), **kwargs), declared)

    def __getitem__(self, index: Any) -> Array:
        return type(self)(self._movable()[base._held(index)], self.dtype)

    def __setitem__(self, index: Any, value: Any) -> None:
        index, value = base._held(index), self._rounded(jnp.asarray(base._held(value)), self.dtype).held
        if isinstance(self.held, jax.core.Tracer):
            self.held = self.held.at[index].set(value)
        else:
            changed = np.array(self.held)
            changed[index] = value
            self.held = jnp.array(changed)

    def astype(self, dtype: Any) -> Array:
        """As the parent's."""
        declared = np.dtype(dtype)
        return self._rounded(jnp.asarray(self.held).astype(base._storage(declared)), declared)

    def reshape(self, *shape: int) -> Array:
        """As the parent's."""
        return type(self)(self._movable().reshape(*shape), self.dtype)

    def transpose(self, *axes: int) -> Array:
        """As the parent's."""
        return type(self)(self._movable().transpose(*axes), self.dtype)

    def _movable(self) -> Any:
        """What is held, on the host unless under trace. A copy: a program may be given the original's memory."""
        return self.held if isinstance(self.held, jax.core.Tracer) else np.array(self.held)

    def _rounded(self, result: jax.Array, declared: np.dtype) -> Array:
        if declared == base.BFLOAT16 and jnp.issubdtype(result.dtype, jnp.floating):
            return type(self)(lax.reduce_precision(result, _NARROW.nexp, _NARROW.nmant), declared)
        if declared in base.EIGHTS and jnp.issubdtype(result.dtype, jnp.floating):
            return type(self)(_eighths(result, declared), declared)
        return self._as(result, declared)

    def _as(self, result: jax.Array, declared: np.dtype) -> Array:
        if result.dtype.kind in "iub":
            declared = base._NARROW.get(result.dtype, result.dtype)
        return type(self)(result.astype(base._storage(declared)), declared)


def _eighths(x: jax.Array, declared: np.dtype) -> jax.Array:
    """Float32 at the nearest number of an fp8 format, of two the even one: NaN beyond the largest, as e4m3fn has no
    infinity, and at infinity in e5m2.

    `reduce_precision` knows no format without infinity, and flushes what is subnormal; a pair of conversions XLA may
    drop. A number's step is a power of two by its exponent, and to divide by that is exact.
    """
    narrow = ml_dtypes.finfo(declared)
    least = np.uint32(int(np.float32(narrow.smallest_normal).view(np.uint32)))
    bits = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32) & np.uint32(0x7F800000)
    step = lax.bitcast_convert_type(jnp.maximum(bits, least), jnp.float32) * np.float32(2.0**-narrow.nmant)
    rounded = jnp.round(x / step) * step
    beyond = np.float32(np.inf if np.isinf(np.float32(np.inf).astype(declared)) else np.nan)
    return jnp.where(jnp.abs(rounded) > np.float32(narrow.max), jnp.copysign(beyond, x), rounded)


def engine(parent: type[Array] = Array) -> SimpleNamespace:
    """An engine that counts its own programs; `programs` says which it has run, `kind` is its class of arrays."""
    _keep_on_disk()
    programs = Programs()
    kind: type[Array] = type("Array", (parent,), {"__slots__": (), "programs": programs})

    def array(value: np.ndarray, dtype: Any = None) -> Array:
        made = base.array(value, dtype)
        # Ids and positions stay on the host until a program takes them.
        return kind(made.held if made.dtype.kind in "iub" else jnp.array(made.held), made.dtype)

    def zeros(shape: tuple[int, ...], dtype: Any) -> Array:
        made = base.zeros(shape, dtype)
        return kind(jnp.array(made.held), made.dtype)

    def host(value: Array) -> np.ndarray:
        values: np.ndarray = np.array(value.held).astype(
            np.int64 if value.dtype.kind == "i" else value.dtype, copy=False
        )
        return values

    def wait(arrays: Sequence[Array]) -> None:
        jax.block_until_ready([one.held for one in arrays])

    return SimpleNamespace(
        NAME=NAME,
        array=array,
        wait=wait,
        zeros=zeros,
        host=host,
        versions={name: version(name) for name in ("jax", "jaxlib")},
        notes=lambda: {"platform": jax.default_backend(), "programs": str(len(programs.used))},
        interpret=programs.interpret,
        programs=programs,
        kind=kind,
        sketch=_sketched,
        spread=_over_mesh,
    )


def _sketched(value: Array, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Products of rows [1, W, ...] with a table [width, N + 1], and their sums of squares: [W, N + 1] and [W].

    One program for each shape; the table stays where it is multiplied.
    """
    sums, squares = _products(value.held, _placed(table))
    return np.asarray(sums), np.asarray(squares)


@jax.jit
def _products(held: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows = held[0].reshape(held.shape[1], -1).astype(jnp.float32)
    return jnp.matmul(rows, table, precision=lax.Precision.HIGHEST), jnp.square(rows).sum(axis=1)


_TABLES: dict[int, tuple[np.ndarray, jax.Array]] = {}


def _placed(table: np.ndarray) -> jax.Array:
    """The table on the device; parity hands over the same one every time."""
    if id(table) not in _TABLES:
        _TABLES[id(table)] = table, jnp.asarray(table)
    return _TABLES[id(table)][1]


def _over_mesh(sharding: Sharding) -> SimpleNamespace:
    """This engine with tensor-parallel ranks."""
    from parity.device.engines.mesh import engine

    return engine(sharding)


cpu_devices.several()


def _keep_on_disk() -> None:
    """Compiled programs outlive the process: in JAX's own cache folder where it has one, or in the user's."""
    if FLAGS.jax_compilation_cache_dir:
        return
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(caches / "parity" / "xla"))
    jax.config.update("jax_compilation_cache_max_size", CACHE_BYTES)  # a limit brings the lock between processes
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
