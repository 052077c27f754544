"""Arrays of the lanes of a batch: each [1, ...], a place in one array of the engine with all lanes along its B axis.

A program that several lanes reach is one call of the kernel over that array. Outside programs a lane's array is
computed with alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from parity.device.engines import AnyEngine, with_ranks
from parity.device.engines.lockstep import Lockstep
from parity.device.kernels.pages import PageStep
from parity.device.kernels.step import Step
from parity.device.kernels.tap import Tap, untapped

CACHE_AXES = 4
"""Of the arrays that a program writes to in place: caches [B, P, G, D] and the summaries of their pages."""


class Lane(np.lib.mixins.NDArrayOperatorsMixin):
    """One lane's array.

    Args:
        stack: the engine's array [n, ...].
        place: which of the n it is.
    """

    __slots__ = ("place", "stack")
    lockstep: Lockstep

    def __init__(self, stack: Any, place: int = 0) -> None:
        self.stack, self.place = stack, place

    @classmethod
    def run_together(cls, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """One call for all lanes that reach it; see `parity.device.kernels.program`."""
        return cls.lockstep.meet((run, _form(arguments)), arguments, lambda many: _called(cls, run, many))

    @property
    def own(self) -> Any:
        """This lane's part [1, ...] as an array of the engine."""
        return self.stack if self.stack.shape[0] == 1 else self.stack[self.place : self.place + 1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes, one lane's."""
        return 1, *self.stack.shape[1:]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return int(self.stack.ndim)

    @property
    def dtype(self) -> np.dtype:
        """The declared dtype."""
        dtype: np.dtype = self.stack.dtype
        return dtype

    def __repr__(self) -> str:
        return f"Lane({self.own!r})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.own, dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Lane:
        if method != "__call__":
            raise NotImplementedError(f"numpy.{ufunc.__name__} with {method} is outside the dialect")
        return type(self)(ufunc(*map(owned, inputs), **kwargs))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Lane:
        return type(self)(func(*map(owned, args), **kwargs))

    def __getitem__(self, index: Any) -> Lane:
        return type(self)(self.own[owned(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        first, *rest = index if isinstance(index, tuple) else (index,)
        if first != slice(None):
            raise NotImplementedError("a lane writes to all of its B axis, which is one")
        self.stack[(slice(self.place, self.place + 1), *map(owned, rest))] = owned(value)

    def astype(self, dtype: Any) -> Lane:
        """Convert, rounding to nearest even."""
        return type(self)(self.own.astype(dtype))

    def reshape(self, *shape: int) -> Lane:
        """The same values under another shape."""
        return type(self)(self.own.reshape(*shape))

    def transpose(self, *axes: int) -> Lane:
        """The same values with the axes in this order."""
        return type(self)(self.own.transpose(*axes))


def engine(machine: AnyEngine, lockstep: Lockstep) -> SimpleNamespace:
    """`machine` for one lane of those that meet in `lockstep`: what has a B axis of one is the lane's own.

    `widest` gives a number that lanes have to agree on, the largest of theirs.
    """
    kind: type[Lane] = type("Lane", (Lane,), {"__slots__": (), "lockstep": lockstep})

    def laned(value: Any) -> Any:
        return kind(value) if value.shape[:1] == (1,) else value

    changed: dict[str, Any] = {
        "array": lambda value, dtype=None: laned(machine.array(value, dtype)),
        "zeros": lambda shape, dtype: laned(machine.zeros(shape, dtype)),
        "host": lambda value: machine.host(owned(value)),
        "widest": lambda number: lockstep.meet("widest", number, lambda many: [max(many)] * len(many)),
    }
    if hasattr(machine, "wait"):
        changed["wait"] = lambda arrays: machine.wait(owned(arrays))
    if hasattr(machine, "shard"):
        changed["shard"] = lambda parts, dtype=None: laned(with_ranks(machine).shard(parts, dtype))
        changed["hosts"] = lambda value: with_ranks(machine).hosts(owned(value))
    offered = {name: getattr(machine, name) for name in ("NAME", "versions", "notes", "interpret", "sharding")
               if hasattr(machine, name)}  # fmt: skip
    return SimpleNamespace(**offered | changed)


def owned(value: Any) -> Any:
    """What lanes stand for, as arrays of the engine; lists and tuples of them likewise."""
    if isinstance(value, Lane):
        return value.own
    if isinstance(value, tuple | list):
        return type(value)(map(owned, value))
    return value


def _called(kind: type[Lane], run: Callable[..., Any], many: list[tuple[Any, ...]]) -> list[Any]:
    """One call with the arguments of several lanes; each lane's result."""
    stacks = _Stacks()
    result = run(*(stacks.joined(column) for column in zip(*many, strict=True)))
    stacks.give_back()
    return [_mapped(result, lambda leaf, place=place: kind(leaf, place)) for place in range(len(many))]  # type: ignore[misc]


class _Stacks:
    """The arguments of one call; arrays that had to be put together for it, and whose they are."""

    def __init__(self) -> None:
        self._copied: list[tuple[Any, Sequence[Lane]]] = []

    def joined(self, column: Sequence[Any]) -> Any:
        """One argument of all lanes."""
        first = column[0]
        if isinstance(first, Lane):
            return self._stacked(column)
        if isinstance(first, tuple | list):
            return type(first)(self.joined(each) for each in zip(*column, strict=True))
        if isinstance(first, dict):
            return {name: self.joined([one[name] for one in column]) for name in first}
        if isinstance(first, Step | PageStep):
            return replace(first, **{one.name: self.joined([getattr(each, one.name) for each in column])
                                     for one in fields(first)})  # fmt: skip
        if _is_tap(first) and any(one is not untapped for one in column):
            return _Taps(column)
        return first

    def give_back(self) -> None:
        """Write what the call may have written back to where it came from."""
        for stack, lanes in self._copied:
            for place, lane in enumerate(lanes):
                lane[:] = stack[place : place + 1]

    def _stacked(self, lanes: Sequence[Lane]) -> Any:
        stack = lanes[0].stack
        together = all(lane.stack is stack and lane.place == place for place, lane in enumerate(lanes))
        if together and stack.shape[0] == len(lanes):
            return stack
        made = np.concatenate([lane.own for lane in lanes], axis=0)
        if made.ndim == CACHE_AXES:
            self._copied.append((made, lanes))
        return made


class _Taps:
    """Each lane's tap, for its own part of what the batch shows."""

    def __init__(self, taps: Sequence[Tap]) -> None:
        self.taps = taps

    def __call__(self, part: str, value: Any) -> Any:
        taken = [owned(tap(part, value[place : place + 1])) for place, tap in enumerate(self.taps)]
        return np.concatenate(taken, axis=0)

    def at(self, layer: int) -> Tap:
        """The taps of this layer."""
        return _Taps([tap.at(layer) for tap in self.taps])

    def of(self, group: str) -> Tap:
        """The taps of this group of stages."""
        return _Taps([tap.of(group) for tap in self.taps])


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The same tree with its arrays changed."""
    if isinstance(tree, tuple | list):
        return type(tree)(_mapped(one, change) for one in tree)
    if isinstance(tree, dict):
        return {name: _mapped(one, change) for name, one in tree.items()}
    if isinstance(tree, Step | PageStep):
        return replace(tree, **{one.name: _mapped(getattr(tree, one.name), change) for one in fields(tree)})
    return change(tree) if _is_array(tree) else tree


def _form(tree: Any) -> Hashable:
    """What has to be the same for lanes to be one call: shapes, dtypes, and all that is no array."""
    if isinstance(tree, Lane):
        return tree.shape, str(tree.dtype)
    if isinstance(tree, tuple | list):
        return tuple(map(_form, tree))
    if isinstance(tree, dict):
        return tuple((name, _form(one)) for name, one in tree.items())
    if is_dataclass(tree) and isinstance(tree, Step | PageStep):
        return tuple(_form(getattr(tree, one.name)) for one in fields(tree))
    if _is_array(tree) or _is_tap(tree):
        return ""  # weights, which all lanes share; a tap, which is each lane's own
    return type(tree), tree


def _is_array(value: Any) -> bool:
    return isinstance(value, np.lib.mixins.NDArrayOperatorsMixin | np.ndarray)


def _is_tap(value: Any) -> bool:
    return callable(value) and hasattr(value, "at") and hasattr(value, "of")
