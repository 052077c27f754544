"""Files of `torch.save`, read by torch itself where it is installed: tensors only, nothing executed."""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO

from parity.errors import UsageError
from parity.imports.arrays import refuse_packed, stored


def torch_load(source: Path | BinaryIO, name: str) -> Any:
    """Read a torch file as `torch.load(weights_only=True)` does: tensors and plain containers, nothing executed.

    A file named by its path is mapped where its tensors lie in it as they are.

    Raises:
        UsageError: torch is not installed, or the file holds anything else or is damaged.
    """
    try:
        load = import_module("torch").load
    except ModuleNotFoundError:
        raise UsageError(
            f"{name} is a torch file and torch is not installed: pip install 'parity-harness[references]' "
            "-c constraints.txt, or save .safetensors or .npy"
        ) from None
    refuse_packed(source, name)
    mapped = {"mmap": True} if isinstance(source, Path) and stored(source) else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch has some for old files, before it refuses them
            return load(str(source) if mapped else source, map_location="cpu", weights_only=True, **mapped)
    except UnpicklingError:
        raise UsageError(
            f"{name} holds more than tensors, or is damaged: torch.load refuses it with weights_only; save tensors only"
        ) from None
    except Exception as error:  # whatever a damaged file raises
        raise UsageError(f"{name} is no torch file, or is damaged ({type(error).__name__})") from None
