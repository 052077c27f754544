"""Shards: safetensors files, mapped into memory and never evaluated."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from parity import files, limits
from parity.errors import UsageError

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
