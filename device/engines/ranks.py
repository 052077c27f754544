"""Tensor-parallel ranks in one process: one array a rank, every operation over all of them in lockstep.

Ranks meet in the two collectives only, as separate machines would. What all ranks hold alike is one array, and
an operation on nothing else runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from parity.device.engines import AnyEngine
from parity.device.kernels.collectives import Groups
from parity.device.sharding import Sharding

T = TypeVar("T")


class Ranks(np.lib.mixins.NDArrayOperatorsMixin):
    """One array of an eager engine for each rank, all of one shape and dtype."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = tuple(parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of one rank's axes."""
        shape: tuple[int, ...] = self.parts[0].shape
        return shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return int(self.parts[0].ndim)

    @property
    def dtype(self) -> np.dtype:
        """The declared dtype."""
        dtype: np.dtype = self.parts[0].dtype
        return dtype

    @property
    def alike(self) -> bool:
        """Whether all ranks hold one and the same array."""
        return all(part is self.parts[0] for part in self.parts)

    def __repr__(self) -> str:
        return f"Ranks({list(self.parts)!r})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError("an array of ranks goes to the host through the engine")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Ranks:
        if method != "__call__":
            raise NotImplementedError(f"numpy.{ufunc.__name__} with {method} is outside the dialect")
        return _lockstep(lambda *mine: ufunc(*mine, **kwargs), *inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Ranks:
        return _lockstep(lambda *mine: func(*mine, **kwargs), *args)

    def __getitem__(self, index: Any) -> Ranks:
        return _lockstep(lambda mine, at: mine[at], self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.alike and not all(_alike(one) for one in (index, value)):
            raise NotImplementedError("ranks write different rows to an array that they share")
        for rank, part in enumerate(self.parts[: 1 if self.alike else None]):
            part[_of(index, rank)] = _of(value, rank)

    def astype(self, dtype: Any) -> Ranks:
        """Convert, rounding to nearest even."""
        return _lockstep(lambda mine: mine.astype(dtype), self)

    def reshape(self, *shape: int) -> Ranks:
        """The same values under another shape."""
        return _lockstep(lambda mine: mine.reshape(*shape), self)

    def transpose(self, *axes: int) -> Ranks:
        """The same values with the axes in this order."""
        return _lockstep(lambda mine: mine.transpose(*axes), self)

    def all_reduce(self, groups: Groups) -> Ranks:
        """See `parity.device.kernels.collectives`; a group's first sum first, so that all of it get the same bits."""
        return Ranks(met(self.parts, groups, lambda parts: reduce(lambda total, part: total + part, parts)))

    def all_gather(self, axis: int, groups: Groups) -> Ranks:
        """See `parity.device.kernels.collectives`."""
        return Ranks(met(self.parts, groups, lambda parts: np.concatenate(parts, axis=axis)))


def met(parts: Sequence[T], groups: Groups, join: Callable[[list[T]], T]) -> list[T]:
    """What each rank has once the ranks of every group have joined their parts."""
    joined = dict(enumerate(parts))
    for group in groups or (range(len(parts)),):
        joined |= dict.fromkeys(group, join([parts[rank] for rank in group]))
    return list(joined.values())


def engine(base: AnyEngine, sharding: Sharding) -> SimpleNamespace:
    """An eager engine with this many ranks.

    Beside the functions of every engine it offers `sharding`, `shard` (one host array a rank to an array) and
    `hosts` (an array to one host array a rank); `host` is rank 0's.
    """
    count = sharding.ranks

    def array(value: np.ndarray, dtype: Any = None) -> Ranks:
        return Ranks([base.array(value, dtype)] * count)

    def zeros(shape: tuple[int, ...], dtype: Any) -> Ranks:
        return Ranks([base.zeros(shape, dtype) for _ in range(count)])

    def shard(parts: Sequence[np.ndarray], dtype: Any = None) -> Ranks:
        return Ranks([base.array(part, dtype) for part in parts])

    def hosts(value: Ranks) -> list[np.ndarray]:
        return [base.host(part) for part in value.parts]

    changed = dict(array=array, zeros=zeros, host=lambda value: base.host(value.parts[0]))
    added = dict(NAME=f"{base.NAME}, tp {count}", shard=shard, hosts=hosts, sharding=sharding)
    return SimpleNamespace(**vars(base) | changed | added)


def _lockstep(operation: Callable[..., Any], *operands: Any) -> Ranks:
    """The operation on every rank's share of the operands; once where no operand differs between ranks."""
    one = next(_ranks(operands))
    ranks = range(len(one.parts))
    if all(map(_alike, operands)):
        return type(one)([operation(*(_of(each, 0) for each in operands))] * len(ranks))
    return type(one)([operation(*(_of(each, rank) for each in operands)) for rank in ranks])


def _of(operand: Any, rank: int) -> Any:
    """A rank's share of an operand; lists and tuples of arrays, as of a concatenation or an index, likewise."""
    if isinstance(operand, Ranks):
        return operand.parts[rank]
    if isinstance(operand, tuple | list):
        return type(operand)(_of(one, rank) for one in operand)
    return operand


def _alike(operand: Any) -> bool:
    if isinstance(operand, tuple | list):
        return all(map(_alike, operand))
    return not isinstance(operand, Ranks) or operand.alike


def _ranks(operand: Any) -> Iterator[Ranks]:
    if isinstance(operand, tuple | list):
        for one in operand:
            yield from _ranks(one)
    elif isinstance(operand, Ranks):
        yield operand
