"""Kernels compiled as XLA programs: one for each signature, shared by every xla engine of the process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from time import perf_counter
from types import FunctionType, ModuleType
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from parity.device.engines.numpy_engine import Array
from parity.device.engines.ranks import Ranks
from parity.device.kernels.pages import PageStep
from parity.device.kernels.round import Parts, State
from parity.device.kernels.step import Step

ARRAYS: tuple[type[Any], ...] = (Array, Ranks)


class Kind(Protocol):
    """A class of arrays: how they enter and leave a program, and the mesh that it runs over."""

    @property
    def mesh(self) -> Any:
        """None on one device."""
        ...

    def of(self, value: jax.Array, dtype: np.dtype) -> Any:
        """An array that a program made."""
        ...

    def inside(self, tracer: Any, dtype: np.dtype) -> Any:
        """What stands for an array within a program."""
        ...

    def spread(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The same on every device of the mesh."""
        ...


_FOLLOWED = (
    "parity.device.kernels.",
    *(
        f"parity.device.{one}"
        for one in ("model", "target", "drafter", "rounds", "peagle", "eagle3", "draft_model", "dflash")
    ),
)
"""Modules in which a kernel finds the functions it calls."""


def _flat_step(step: Step) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return (step.slots, step.cos, step.sin, step.pages, *step.seen.values()), (step.span, tuple(step.seen))


def _step(static: tuple[Any, ...], arrays: tuple[Any, ...]) -> Step:
    (span, windows), (slots, cos, sin, pages, *seen) = static, arrays
    return Step(slots, cos, sin, span, dict(zip(windows, seen, strict=True)), pages)


jax.tree_util.register_pytree_node(Step, _flat_step, _step)
jax.tree_util.register_dataclass(PageStep, ["positions", "own", "touched"], [])
jax.tree_util.register_dataclass(State, ["tokens", "count", "length", "cached", "left", "taps"], [])
jax.tree_util.register_dataclass(Parts, ["outer", "layers", "caches", "tables"], [])


@dataclass(frozen=True)
class Compiled:
    """One program.

    Args:
        kernel: its function's name.
        code: takes the values of all array arguments; gives the result's, then those that it wrote to.
        written: places of the written ones among the array arguments; their memory is donated.
        dtypes: of the result's arrays, in order.
        result: how those arrays make up the result.
    """

    kernel: str
    code: Callable[..., list[jax.Array]]
    written: tuple[int, ...]
    dtypes: tuple[np.dtype, ...]
    result: Any

    def call(self, kind: Kind, arrays: list[Any], values: list[Any]) -> Any:
        """Run it; the arrays it wrote to hold what was written."""
        given = self.code(*values)
        for place, value in zip(self.written, given[len(self.dtypes) :], strict=True):
            arrays[place].held = value
        made = [kind.of(value, dtype) for value, dtype in zip(given, self.dtypes, strict=False)]
        return jax.tree.unflatten(self.result, made)


_COMPILED: dict[tuple[Any, ...], Compiled] = {}


class Programs:
    """The programs that one engine has run.

    Attributes:
        used: by signature.
        compiled: how many of them were new to the process.
        seconds: what tracing and compiling those took, their first run included.
    """

    def __init__(self) -> None:
        self.used: dict[tuple[Any, ...], Compiled] = {}
        self.compiled, self.seconds, self._interpreting = 0, 0.0, False

    def interpret(self) -> None:
        """Run kernels operation by operation from now on: what they do on the host happens every time."""
        self._interpreting = True

    def run(self, kind: Kind, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """The kernel's result, by its compiled program; called as it is within a larger program.

        Args:
            kind: the arrays' class; it makes them `of` values, and stands for them `inside` a program `spread` over
                devices.
        """
        if self._interpreting:
            return kernel(*arguments)
        arrays, form, signature = _flat(arguments)
        values = [one.held for one in arrays]
        if any(issubclass(one, jax.core.Tracer) for one in set(map(type, values))):
            return kernel(*arguments)
        key = kernel, _version(), form, signature, kind.mesh
        if key not in self.used and key not in _COMPILED:
            return self._first(key, kind, arguments)
        if key not in self.used:
            self.used[key] = _COMPILED[key]
        return self.used[key].call(kind, arrays, values)

    def _first(self, key: tuple[Any, ...], kind: Kind, arguments: tuple[Any, ...]) -> Any:
        start, kernel = perf_counter(), key[0]
        leaves, form = jax.tree.flatten(arguments)
        arrays = _arrays(leaves)
        values = [one.held for one in arrays]
        _COMPILED[key] = self.used[key] = _compile(kind, kernel, form, leaves, values)
        result = jax.block_until_ready(self.used[key].call(kind, arrays, values))
        self.compiled += 1
        self.seconds += perf_counter() - start
        return result


_SEEN: WeakKeyDictionary[Parts, tuple[list[Any], int]] = WeakKeyDictionary()
_NUMBERS: dict[Any, int] = {}
"""Of the signatures of `Parts`."""


def _flat(arguments: tuple[Any, ...]) -> tuple[list[Any], Any, tuple[Any, ...]]:
    """All arrays, the form of the arguments around `Parts`, and what a program of them is compiled for.

    A model's hundreds of arrays are taken apart once for each `Parts`.
    """
    if not any(type(one) is Parts for one in arguments):
        leaves, form = jax.tree.flatten(arguments)
        return _arrays(leaves), form, tuple(map(_signature, leaves))
    every: list[Any] = []
    forms: list[Any] = []
    signature: list[Any] = []
    for one in arguments:
        if type(one) is Parts:
            arrays, number = _parts(one)
            signature.append(number)
        else:
            leaves, form = jax.tree.flatten(one)
            arrays = _arrays(leaves)
            signature.append(tuple(map(_signature, leaves)))
            forms.append(form)
        every += arrays
    return every, tuple(forms), tuple(signature)


def _parts(parts: Parts) -> tuple[list[Any], int]:
    """The arrays of a model, and a number for their form and signatures."""
    if parts not in _SEEN:
        leaves, form = jax.tree.flatten(parts)
        signed = form, tuple(map(_signature, leaves))
        _SEEN[parts] = _arrays(leaves), _NUMBERS.setdefault(signed, len(_NUMBERS))
    return _SEEN[parts]


def _arrays(leaves: list[Any]) -> list[Any]:
    return [leaf for leaf in leaves if isinstance(leaf, ARRAYS)]


def _signature(leaf: Any) -> tuple[Any, ...]:
    """What a program is compiled for: an array's shape and dtype, and the form of one in a file; anything else itself
    (1 is not True nor 1.0)."""
    return (leaf.shape, leaf.dtype, getattr(leaf, "form", None)) if isinstance(leaf, ARRAYS) else (type(leaf), leaf)


def _compile(kind: Kind, kernel: Callable[..., Any], form: Any, leaves: list[Any], values: list[Any]) -> Compiled:
    """Trace once, which tells the written arguments, and compile with their memory donated."""
    seen: dict[str, Any] = {}

    def traced(*tracers: Any) -> list[Any]:
        fresh = iter(tracers)
        inside = [_inside(kind, leaf, next(fresh)) if isinstance(leaf, ARRAYS) else leaf for leaf in leaves]
        result, seen["result"] = jax.tree.flatten(kernel(*jax.tree.unflatten(form, inside)))
        arrays = [one for one in inside if isinstance(one, ARRAYS)]
        pairs = enumerate(zip(arrays, tracers, strict=True))
        seen["written"] = tuple(place for place, (one, tracer) in pairs if one.held is not tracer)
        seen["dtypes"] = tuple(one.dtype for one in result)
        return [one.held for one in result] + [arrays[place].held for place in seen["written"]]

    code = jaxpr_as_fun(jax.make_jaxpr(kind.spread(traced))(*values))
    return Compiled(kernel.__name__, jax.jit(code, donate_argnums=seen["written"]), **seen)


def _inside(kind: Kind, array: Any, tracer: Any) -> Any:
    """What stands for an array within a program; an array in a file says it of itself."""
    return array.within(tracer) if hasattr(array, "within") else kind.inside(tracer, array.dtype)


@cache
def _names() -> list[tuple[dict[str, Any], itemgetter[Any]]]:
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith(_FOLLOWED)]
    called = [[name for name, one in vars(module).items() if _is_called(one)] for module in modules]
    return [(vars(module), itemgetter(*names)) for module, names in zip(modules, called, strict=True) if names]


def _is_called(one: Any) -> bool:
    return isinstance(one, FunctionType | ModuleType)


_VERSIONS: list[tuple[Any, ...]] = []


def _version() -> int:
    """A number for the functions that the kernels' modules hold now: one that was replaced is compiled anew.

    The functions themselves are kept, so that no later one is taken for them.
    """
    now = tuple(get(names) for names, get in _names())
    for number, one in enumerate(_VERSIONS):
        if one == now:
            return number
    _VERSIONS.append(now)
    return len(_VERSIONS) - 1
