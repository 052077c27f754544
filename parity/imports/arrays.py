"""Array files of every kind as NumPy arrays; whatever would execute code when read is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from parity import files, limits
from parity.errors import UsageError
from parity.golden import shards
from parity.imports.archives import members
from parity.imports.captured import TorchLoad

TORCH = (".pt", ".pth")
ARRAYS = (".npy", ".npz", ".safetensors", *TORCH)


def held(path: Path, torch_load: TorchLoad) -> list[tuple[str, Callable[[], np.ndarray]]]:
    """What an array file holds: the key ('' for a bare array) and how to read it.

    Raises:
        UsageError: the file cannot be read, or holds something else than tensors, or nothing.
    """
    if path.suffix in TORCH:
        values = leaves(torch_load(path, str(path)), path)
        found = [(key, partial(tensor, value, f"{path} {key}".strip())) for key, value in values]
    elif path.suffix == ".safetensors":
        found = [(key, lambda array=array: array) for key, array in shards.read(path).items()]
    else:
        found = list(members(path, str(path)).items())
    if not found:
        raise UsageError(f"{path} holds no tensor")
    return found


def tensor(value: Any, name: str) -> np.ndarray:
    """A tensor of any library, or a plain number or list of them, as an array; bfloat16 stays bfloat16.

    Raises:
        UsageError: it is no tensor.
    """
    if hasattr(value, "detach"):
        try:
            value = value.detach().cpu()
            if value.numel() * value.element_size() > value.untyped_storage().nbytes():
                raise UsageError(f"{name} claims {value.numel()} elements, which its file does not hold")
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


def leaves(value: Any, path: Path) -> list[tuple[str, Any]]:
    """The leaves of nested mappings and lists of tensors, keys joined by dots; a list of numbers is one leaf.

    Raises:
        UsageError: there are too many, or a container holds itself.
    """
    found, seen, waiting = [], 0, [("", value)]
    while waiting:
        prefix, value = waiting.pop()
        if isinstance(value, dict):
            parts = [(str(key), part) for key, part in value.items()]
        elif isinstance(value, (list, tuple)) and not all(isinstance(part, (int, float)) for part in value):
            parts = [(str(number), part) for number, part in enumerate(value)]
        else:
            found.append((prefix, value))
            continue
        seen += 1 + len(parts)
        if seen > limits.ARCHIVE_MEMBERS or prefix.count(".") > limits.DEPTH:
            raise UsageError(
                f"{path} holds more than {limits.ARCHIVE_MEMBERS} values, or a container that holds itself"
            )
        waiting += [(f"{prefix}.{key}" if prefix else key, part) for key, part in reversed(parts)]
    return found


def read_json(path: Path, most: int = limits.RECORD_BYTES) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        UsageError: it cannot be read, or is none.
    """
    found = files.parsed(files.content(path, most), str(path))
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no JSON object")
    return found
