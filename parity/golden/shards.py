"""Shards: safetensors files, mapped into memory and never evaluated; and how those of ranks make one tensor."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from parity import files, limits
from parity.errors import UsageError
from parity.golden.manifest import TensorRow

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(bool),
}

NAMES = {dtype: dtype.name for dtype in DTYPES.values()}
"""NumPy makes a name anew each time it is asked for."""


def digest(array: NDArray[Any]) -> str:
    """sha256 over the bytes of a contiguous array."""
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()


def write(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write contiguous arrays as one shard.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.touch()
        mode = path.stat().st_mode  # what this user's new files are; safetensors' own are nobody else's to read
        save_file(dict(tensors), path)
        path.chmod(mode)
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} cannot be written ({error})") from None


def read(path: Path, dtypes: Mapping[str, np.dtype[Any]] = DTYPES) -> dict[str, NDArray[Any]]:
    """Map every tensor of a shard into memory, read-only and without copying.

    Args:
        dtypes: that it may hold, by the names of safetensors; those of a dump by default.

    Raises:
        UsageError: the file is missing, truncated or not a safetensors file.
    """
    with files.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(size - 8, limits.HEADER_BYTES):
            raise UsageError(f"{path} is truncated or not a safetensors file")
        header = files.parsed(file.read(length), f"the header of {path}")
        if not isinstance(header, dict):
            raise UsageError(f"{path} is not a safetensors file: its header is no JSON object")
        # As a plain array: each slice of a memmap runs Python code of its own.
        body = (
            np.asarray(np.memmap(file, dtype=np.uint8, mode="r", offset=8 + length))
            if size > 8 + length
            else np.empty(0, np.uint8)
        )
    return {name: _tensor(path, body, name, entry, dtypes) for name, entry in header.items() if name != "__metadata__"}


def _tensor(path: Path, body: NDArray[Any], name: str, entry: Any, dtypes: Mapping[str, np.dtype[Any]]) -> NDArray[Any]:
    try:
        kind, shape, (begin, end) = str(entry["dtype"]), list(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        kind, shape, begin, end = "", [], -1, -1
    if len(shape) > limits.AXES:
        raise UsageError(f"{path}: tensor {name} has {len(shape)} axes, {limits.AXES} at most are read")
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise UsageError(f"{path} is damaged: its header does not say what tensor {name} is")
    dtype = dtypes.get(kind)
    if dtype is None:
        raise UsageError(f"{path}: tensor {name} has dtype {kind}, which the format does not know")
    if end > body.size or end - begin != dtype.itemsize * math.prod(shape):
        raise UsageError(f"{path} is truncated: tensor {name} ends at byte {end} of {body.size}")
    tensor: NDArray[Any] = body[begin:end].view(dtype).reshape(shape)
    return tensor


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
