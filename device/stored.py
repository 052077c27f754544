"""Checkpoints larger than memory: tensors stay in their files, as stored, until a kernel uses them."""

from __future__ import annotations

import json
import mmap
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from parity.device import mxfp4
from parity.device.checkpoint import Checkpoint, refuse_other

LARGE = 2**20
"""Numbers of a tensor from which it stays in its file."""
_DTYPES = {"BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype(np.float16), "F32": np.dtype(np.float32)}
_DTYPES |= {"U8": np.dtype(np.uint8)}


class StoredCheckpoint(Checkpoint):
    """A folder whose large tensors are mapped, not read; what is made of them is a view of the file."""

    def tensor(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> np.ndarray:
        """The tensor of this name, mapped where it is large, after shape and dtype were checked."""
        path = self.path(name)
        said = _header(path)[1].get(name, {})
        if np.prod(shape, dtype=np.int64) < LARGE or said.get("dtype") not in _DTYPES:
            return super().tensor(name, shape, dtypes)
        refuse_other(path, name, (tuple(said["shape"]), _DTYPES[said["dtype"]].name), (shape, dtypes))
        begin = _header(path)[0] + said["data_offsets"][0]
        return np.memmap(path, _DTYPES[said["dtype"]], "r", begin, shape)

    def settled(self, view: np.ndarray) -> np.ndarray:
        """The view, which is as good as the file."""
        return view

    def decoded(self, blocks: np.ndarray, scales: np.ndarray) -> Any:
        """Matrices that stay packed."""
        return mxfp4.Packed(blocks, scales)


@cache
def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """Where the tensors of a safetensors file begin, and what its header says of each."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return 8 + length, json.loads(file.read(length))


def stays(value: Any) -> bool:
    """Whether this is a large tensor in a file, or a view of one."""
    if isinstance(value, mxfp4.Packed):
        return True
    return isinstance(value, np.memmap) and value.size >= LARGE


def release(value: Any) -> None:
    """Give back the pages of memory through which a file was read."""
    for one in (value.blocks, value.scales) if isinstance(value, mxfp4.Packed) else (value,):
        mapping = getattr(one, "_mmap", None)
        if mapping is not None:
            mapping.madvise(mmap.MADV_DONTNEED)
