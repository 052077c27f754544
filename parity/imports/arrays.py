"""Array files of every kind as NumPy arrays; whatever would execute code when read is refused by name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from parity.errors import UsageError
from parity.golden import shards
from parity.imports.captured import TorchLoad

TORCH = (".pt", ".pth")
ARRAYS = (".npy", ".npz", ".safetensors", *TORCH)


def held(path: Path, torch_load: TorchLoad) -> list[tuple[str, Callable[[], np.ndarray]]]:
    """What an array file holds: the key ('' for a bare array) and how to read it.

    Raises:
        UsageError: the file cannot be read, or holds something else than tensors, or nothing.
    """
    if path.suffix in TORCH:
        leaves = _leaves(torch_load(path, str(path)), path)
        found = [(key, partial(tensor, value, f"{path} {key}".strip())) for key, value in leaves]
    else:
        arrays = shards.read(path) if path.suffix == ".safetensors" else numpy_arrays(path, str(path))
        found = [(key, lambda array=array: array) for key, array in arrays.items()]
    if not found:
        raise UsageError(f"{path} holds no tensor")
    return found


def numpy_arrays(source: Path | BinaryIO, name: str) -> Mapping[str, np.ndarray]:
    """The arrays of an .npz by name, or an .npy as ''.

    Raises:
        UsageError: it holds pickled objects, something else than arrays or a name twice, or is no such file.
    """
    try:
        opened = np.load(source, allow_pickle=False, mmap_mode="r" if isinstance(source, Path) else None)
        if isinstance(opened, np.ndarray):
            return {"": opened}
        with opened:  # reading members one by one would parse the archive's directory for each of them
            arrays = [(key, opened[key]) for key in opened.files]
    except Exception as error:  # whatever a damaged file raises
        said = f"{str(error).partition(chr(10))[0]} ({type(error).__name__})"
        raise UsageError(f"{name} cannot be read without executing what it holds, or is damaged: {said}") from None
    if odd := [key for key, array in arrays if not isinstance(array, np.ndarray)]:
        raise UsageError(f"{name}: {odd[0]} is no array")
    if twice := [key for key, count in Counter(key for key, _ in arrays).items() if count > 1]:
        raise UsageError(f"{name} holds {twice[0]} twice")
    return dict(arrays)


def tensor(value: Any, name: str) -> np.ndarray:
    """A tensor of any library, or a plain number or list of them, as an array; bfloat16 stays bfloat16.

    Raises:
        UsageError: it is no tensor.
    """
    if hasattr(value, "detach"):
        try:
            value = value.detach().cpu()
            narrow = str(value.dtype) == "torch.bfloat16"
            return value.float().numpy().astype(ml_dtypes.bfloat16) if narrow else value.numpy()
        except (TypeError, RuntimeError) as error:
            raise UsageError(f"{name} is a tensor that NumPy has no form for: {error}") from None
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "biuf" and array.dtype != ml_dtypes.bfloat16:
        raise UsageError(f"{name} holds a {type(value).__name__}, no tensor")
    return array


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings and lists of tensors, keys joined by dots; a list of numbers is one leaf."""
    if isinstance(value, dict):
        parts = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, (list, tuple)) and not all(isinstance(part, (int, float)) for part in value):
        parts = [(str(number), part) for number, part in enumerate(value)]
    else:
        yield prefix, value
        return
    for key, part in parts:
        yield from flat(part, f"{prefix}.{key}" if prefix else key)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        UsageError: it cannot be read, or is none.
    """
    try:
        found = json.loads(path.read_bytes(), object_pairs_hook=files.once)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON file: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no JSON object")
    return found


def _leaves(value: Any, path: Path) -> list[tuple[str, Any]]:
    try:
        return list(flat(value))
    except RecursionError:
        raise UsageError(f"{path} holds a container that holds itself") from None
