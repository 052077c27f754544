"""How the rows and tensors of ranks make one row and one tensor, and a tensor those of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.errors import UsageError
from parity.golden.manifest import TensorRow
from parity.golden.views import TensorPlace

SUM, REPLICATED = "sum", "replicated"


def merged_row(rows: Sequence[TensorRow]) -> TensorRow:
    """The row of the whole tensor; `rows` are one place's, in rank order.

    Raises:
        UsageError: ranks are missing or twice there, or disagree on axes, dtype, sharding or shape.
    """
    first = rows[0]
    if len(rows) == 1 and first.rank == 0 and first.sharding == REPLICATED:
        return first
    if [row.rank for row in rows] != list(range(len(rows))):
        raise UsageError(f"{first.key}: ranks {[row.rank for row in rows]} are not 0 … {len(rows) - 1}, each once")
    axis, copies = _cut(first.key, first.sharding, first.axes)
    if len({(row.axes, row.dtype, row.sharding, row.start, _without(row.shape, axis)) for row in rows}) > 1:
        raise UsageError(f"{first.key}: the ranks disagree on axes, dtype, sharding or shape")
    if axis is None or len(rows) == 1:
        return first
    if len(rows) % copies:
        raise UsageError(f"{first.key}: {len(rows)} ranks are no multiple of {copies}, which {first.sharding} asks for")
    shape = list(first.shape)
    shape[axis] = sum(row.shape[axis] for row in rows[::copies])
    return first.model_copy(update={"shape": tuple(shape)})


def merge(rows: Sequence[TensorRow], shards: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The whole tensor; partial sums are added in float32 and rounded once to the shards' dtype."""
    return merge_shards(rows[0].key, shards, rows[0].sharding, rows[0].axes)


def merge_shards(name: str, shards: Sequence[NDArray[Any]], sharding: str, axes: Sequence[str]) -> NDArray[Any]:
    """The whole tensor out of each rank's; of replicas the first one. `name` is for the refusal of a sharding."""
    if len(shards) == 1 or sharding == REPLICATED:
        return shards[0]
    if sharding == SUM:
        total: NDArray[Any] = np.sum([shard.astype(np.float32) for shard in shards], axis=0)
        return total.astype(shards[0].dtype)
    axis, copies = _cut(name, sharding, axes)
    return np.concatenate(shards[::copies], axis=axis)


def split(name: str, whole: NDArray[Any], ranks: int, sharding: str, axes: Sequence[str]) -> list[NDArray[Any]]:
    """Each rank's part of a whole tensor; a sum falls to rank 0, with zeros for the others."""
    axis, copies = _cut(name, sharding, axes)
    if sharding == SUM:
        return [whole, *[np.zeros_like(whole)] * (ranks - 1)]
    if axis is None:
        return [whole] * ranks
    return [part for part in np.split(whole, ranks // copies, axis=axis) for _ in range(copies)]


def replicas_differ(rows: Sequence[TensorRow]) -> bool:
    """Whether ranks that should hold the same tensor hold different bytes."""
    if rows[0].sharding == SUM:
        return False
    copies = len(rows) if rows[0].sharding == REPLICATED else _cut(rows[0].key, rows[0].sharding, rows[0].axes)[1]
    return any(row.sha256 != rows[place - place % copies].sha256 for place, row in enumerate(rows))


def _cut(name: str, sharding: str, axes: Sequence[str]) -> tuple[int | None, int]:
    """The axis that is shared out (None for sums and replicas), and how many neighbouring ranks hold the same of it."""
    if sharding in (SUM, REPLICATED):
        return None, 1
    axis, slash, copies = sharding.partition("/")
    if axis not in axes or (slash and not (copies.isdecimal() and int(copies))):
        letters = ", ".join(axes)
        raise UsageError(f"{name}: sharding {sharding!r} is none of sum, replicated, {letters}, or a letter/copies")
    return list(axes).index(axis), int(copies or 1)


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return tuple(size for place, size in enumerate(shape) if place != axis)


def by_place(rows: Iterable[TensorRow]) -> dict[TensorPlace, list[TensorRow]]:
    """The rows of each variant, prompt, round and stage, in the order of their ranks."""
    grouped: dict[TensorPlace, list[TensorRow]] = {}
    for row in sorted(rows, key=lambda row: row.rank):
        grouped.setdefault((row.variant, *row.place), []).append(row)
    return grouped
