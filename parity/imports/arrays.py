"""Array files of every kind as NumPy arrays; whatever would execute code when read is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import ml_dtypes
import numpy as np

from parity.errors import UsageError
from parity.golden import shards
from parity.imports.captured import TorchLoad

TORCH = (".pt", ".pth")
ARRAYS = (".npy", ".npz", ".safetensors", *TORCH)
REFUSED = (".pkl", ".pickle", ".dill", ".joblib", ".cloudpickle")


def refuse_executable(path: Path) -> None:
    """Refuse a kind of file that executes what it holds when it is read.

    Raises:
        UsageError: it is one.
    """
    if path.suffix.lower() in REFUSED:
        raise UsageError(f"{path} is a pickle: reading it could execute code; save .npy, .npz, .safetensors or .pt")


def held(path: Path, torch_load: TorchLoad) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """What an array file holds: the key ('' for a bare array) and how to read it.

    Raises:
        UsageError: the file cannot be read, or holds something else than tensors.
    """
    refuse_executable(path)
    if path.suffix == ".safetensors":
        yield from ((key, lambda array=array: array) for key, array in shards.read(path).items())
    elif path.suffix in TORCH:
        for key, value in flat(torch_load(path, str(path))):
            yield key, lambda value=value, key=key: tensor(value, f"{path} {key}".strip())
    else:
        opened = numpy_load(path, str(path))
        if isinstance(opened, np.ndarray):
            yield "", lambda: opened
            return
        with opened:  # reading members one by one would parse the archive's directory for each of them
            arrays = {key: _member(opened, key, path) for key in opened.files}
        yield from ((key, lambda array=array: array) for key, array in arrays.items())


def numpy_load(source: Path | BinaryIO, name: str) -> Any:
    """`np.load` without pickles: an array, or an open .npz.

    Raises:
        UsageError: it holds pickled objects, or is no such file.
    """
    try:
        return np.load(source, allow_pickle=False, mmap_mode="r" if isinstance(source, Path) else None)
    except (ValueError, EOFError, OSError, BadZipFile) as error:
        raise UsageError(f"{name} cannot be read without executing what it holds, or is damaged: {error}") from None


def tensor(value: Any, name: str) -> np.ndarray:
    """A tensor of any library, or a plain number or list of them, as an array; bfloat16 stays bfloat16.

    Raises:
        UsageError: it is no tensor.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        narrow = str(value.dtype) == "torch.bfloat16"
        try:
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
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UsageError(f"{path} is no JSON file: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no JSON object")
    return found


def _member(opened: Any, key: str, path: Path) -> np.ndarray:
    """One array of an open .npz."""
    try:
        return opened[key]
    except (ValueError, BadZipFile) as error:
        said = f"{path} {key} cannot be read without executing what it holds, or is damaged"
        raise UsageError(f"{said}: {error}") from None
