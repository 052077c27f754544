"""Tensor-parallel dumps: the shards of several ranks as the one tensor they stand for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parity.errors import UsageError
from parity.golden.manifest import TensorRow

SUM, REPLICATED = "sum", "replicated"


def merged_row(rows: Sequence[TensorRow]) -> TensorRow:
    """The row of the whole tensor; `rows` are one place's, in rank order.

    Raises:
        UsageError: ranks are missing or twice there, or disagree on axes, dtype, sharding or shape.
    """
    first = rows[0]
    if [row.rank for row in rows] != list(range(len(rows))):
        raise UsageError(f"{first.key}: ranks {[row.rank for row in rows]} are not 0 … {len(rows) - 1}, each once")
    axis = None if first.sharding in (SUM, REPLICATED) else _axis(first)
    if len({(row.axes, row.dtype, row.sharding, row.start, _without(row.shape, axis)) for row in rows}) > 1:
        raise UsageError(f"{first.key}: the ranks disagree on axes, dtype, sharding or shape")
    if axis is None:
        return first
    shape = list(first.shape)
    shape[axis] = sum(row.shape[axis] for row in rows)
    return first.model_copy(update={"shape": tuple(shape)})


def merge(rows: Sequence[TensorRow], shards: Sequence[np.ndarray]) -> np.ndarray:
    """The whole tensor; partial sums are added in float32 and rounded once to the shards' dtype."""
    sharding = rows[0].sharding
    if len(shards) == 1 or sharding == REPLICATED:
        return shards[0]
    if sharding == SUM:
        return np.sum([shard.astype(np.float32) for shard in shards], axis=0).astype(shards[0].dtype)
    return np.concatenate(shards, axis=_axis(rows[0]))


def replicas_differ(rows: Sequence[TensorRow]) -> bool:
    """Whether ranks that should hold the same tensor hold different bytes."""
    return rows[0].sharding == REPLICATED and len({row.sha256 for row in rows}) > 1


def _axis(row: TensorRow) -> int:
    if row.sharding not in row.axes:
        raise UsageError(f"{row.key}: sharding {row.sharding!r} is none of sum, replicated, {', '.join(row.axes)}")
    return row.axes.index(row.sharding)


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return tuple(size for place, size in enumerate(shape) if place != axis)
