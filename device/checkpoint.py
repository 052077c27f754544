"""Checkpoint folders on disk: config.json beside one safetensors file or an index of shards."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16, the dtype that safetensors hands out for BF16
import numpy as np
from safetensors import SafetensorError, safe_open

from parity.device import mxfp4
from parity.errors import UsageError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
JSON_BYTES = 2**26
"""A shard index names each tensor once: 10 MB for the largest models."""
FLOATS = ("float32", "bfloat16", "float16")
INTEGERS = ("int64", "int32")


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object; UsageError where the file is missing, unreadable or something else."""
    if path.exists() and not (path.is_file() and path.stat().st_size <= JSON_BYTES):
        raise UsageError(f"{path}: not readable as JSON (no regular file of at most {JSON_BYTES} bytes).")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: the file is missing.") from None
    except RecursionError:
        raise UsageError(f"{path}: not readable as JSON (nested too deep).") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not readable as JSON ({error}).") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path}: a JSON object is expected, not a {type(data).__name__}.")
    return data


class Described:
    """The config.json of one folder; tensors need not be there."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise UsageError(f"{self.folder}: no such checkpoint folder.")
        self.config = read_json(self.folder / "config.json")

    def described(self, config: dict[str, Any]) -> Described:
        """The same folder with another reading of its config.json."""
        other = object.__new__(Described)
        other.folder, other.config = self.folder, config
        return other


class Tensors(Described, ABC):
    """A folder with tensors, or what stands for them."""

    @property
    @abstractmethod
    def names(self) -> Collection[str]:
        """The names of all tensors."""

    @abstractmethod
    def tensor(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> Any:
        """The tensor of this name, or an array without values in its place, after shape and dtype were checked."""

    def settled(self, view: Any) -> Any:
        """A view of a tensor as an array of its own, in this order of memory."""
        return view.copy()

    def decoded(self, blocks: Any, scales: Any) -> Any:
        """Matrices of experts out of MXFP4, [E, in, out]; see `mxfp4.decode`."""
        return mxfp4.decode(blocks, scales)

    @abstractmethod
    def refuse_surplus(self, expected: Collection[str]) -> None:
        """UsageError for a tensor that nothing reads: it would change the model if it were read."""


class Checkpoint(Tensors):
    """The tensors of one folder, read by name when asked for.

    Args:
        folder: holds config.json and model.safetensors, or model.safetensors.index.json and its shards.
    """

    @cached_property
    def _where(self) -> dict[str, Path]:
        """The file of each tensor; looked for when the first is asked for, as not every folder has some."""
        return self._locate()

    @cached_property
    def _opened(self) -> dict[Path, Any]:
        """Files that tensors were read from: to open one reads what is said of all its tensors."""
        return {}

    @property
    def names(self) -> set[str]:
        """The names of all tensors."""
        return set(self._where)

    def tensor(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> np.ndarray:
        """The tensor of this name, in its stored dtype, after shape and dtype were checked."""
        path = self.path(name)
        try:
            if path not in self._opened:
                self._opened[path] = safe_open(path, framework="numpy")
            value: np.ndarray = self._opened[path].get_tensor(name)
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            raise UsageError(f"{path}: tensor '{name}' is not readable ({error}).") from None
        refuse_other(path, name, (value.shape, value.dtype.name), (shape, dtypes))
        return value

    def path(self, name: str) -> Path:
        """The file of this tensor; UsageError where there is none."""
        if name not in self._where:
            raise UsageError(f"{self.folder}: tensor '{name}' is missing.")
        return self._where[name]

    def refuse_surplus(self, expected: Collection[str]) -> None:
        """UsageError for a tensor that nothing reads: it would change the model if it were read."""
        surplus = sorted(self.names - set(expected))
        if surplus:
            raise UsageError(f"{self._where[surplus[0]]}: tensor '{surplus[0]}' is not part of this architecture.")

    def _locate(self) -> dict[str, Path]:
        index = self.folder / INDEX
        if not index.exists():
            single = self.folder / SINGLE
            return dict.fromkeys(_names_in(single), single)
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
            raise UsageError(f"{index}: field 'weight_map' must map tensor names to shard files.")
        for shard in sorted(set(weight_map.values())):
            if not shard or shard in (".", "..") or Path(shard).name != shard or "\\" in shard or "\0" in shard:
                raise UsageError(f"{index}: field 'weight_map' names {shard!r}, which is no file name of this folder.")
        where = {name: self.folder / shard for name, shard in weight_map.items()}
        self._agree_with_shards(index, where)
        return where

    def _agree_with_shards(self, index: Path, where: dict[str, Path]) -> None:
        for shard in sorted(set(where.values())):
            stored, listed = _names_in(shard), {name for name, path in where.items() if path == shard}
            if stored != listed:
                name = min(stored ^ listed)
                state = "missing from the shard" if name in listed else "not listed in the index"
                raise UsageError(f"{index}: tensor '{name}' of {shard.name} is {state}.")


def refuse_other(
    path: Path, name: str, stored: tuple[tuple[int, ...], str], wanted: tuple[tuple[int, ...], tuple[str, ...]]
) -> None:
    """UsageError where a tensor's shape and dtype are not those that are wanted."""
    (shape, dtype), (asked, dtypes) = stored, wanted
    if shape != asked:
        raise UsageError(f"{path}: tensor '{name}' has shape {list(shape)}, the config asks for {list(asked)}.")
    if dtype not in dtypes:
        raise UsageError(f"{path}: tensor '{name}' is {dtype}; {' or '.join(dtypes)} is expected.")


def _names_in(path: Path) -> set[str]:
    if not path.exists():
        raise UsageError(f"{path}: the file is missing.")
    try:
        with safe_open(path, framework="numpy") as file:
            return set(file.keys())
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path}: truncated or not a safetensors file ({error}).") from None
