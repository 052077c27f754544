"""Safetensors shards: written whole, read as memory maps. Nothing in them is ever evaluated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

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


def digest(array: np.ndarray) -> str:
    """sha256 over the bytes of a contiguous array."""
    return hashlib.sha256(memoryview(array.reshape(-1).view(np.uint8))).hexdigest()


def write(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write contiguous arrays as one shard."""
    save_file(dict(tensors), path)


def read(path: Path) -> dict[str, np.ndarray]:
    """Map every tensor of a shard into memory, read-only and without copying.

    Raises:
        UsageError: the file is missing, truncated or not a safetensors file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if 0 < length <= size - 8 else None
    except (OSError, ValueError):
        header = None
    if header is None:
        raise UsageError(f"{path} is truncated or not a safetensors file")
    body = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length) if size > 8 + length else np.empty(0, np.uint8)
    return {name: _tensor(path, body, name, entry) for name, entry in header.items() if name != "__metadata__"}


def _tensor(path: Path, body: np.ndarray, name: str, entry: dict) -> np.ndarray:
    begin, end = entry["data_offsets"]
    dtype = DTYPES.get(entry["dtype"])
    if dtype is None:
        raise UsageError(f"{path}: tensor {name} has dtype {entry['dtype']}, which the format does not know")
    if end > body.size or end - begin != dtype.itemsize * int(np.prod(entry["shape"], dtype=np.int64)):
        raise UsageError(f"{path} is truncated: tensor {name} ends at byte {end} of {body.size}")
    return body[begin:end].view(dtype).reshape(entry["shape"])
