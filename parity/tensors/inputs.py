"""What is compared, as NumPy arrays by name: arrays of any library, mappings of them, or files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from parity import limits
from parity.errors import UsageError
from parity.metrics.dtypes import is_float8

Arrays = dict[str, Callable[[], NDArray[Any]]]
"""Each array by its name, read when it is asked for; a single one has no name: ''."""


def arrays_of(value: object, side: str) -> Arrays:
    """The arrays of one side.

    Args:
        value: an array, a mapping of names to arrays, or the path of a file or folder
            (`parity.tensors.files`).
        side: `actual` or `expected`, for sentences.

    Raises:
        UsageError: it is none of these, or the file cannot be read.
    """
    if isinstance(value, (str, Path)):
        return _file(Path(value), side)
    if isinstance(value, Mapping):
        return _named(value, side)
    return {"": partial(_given, array_of(value, side))}


def array_of(value: object, what: str) -> NDArray[Any]:
    """An array of NumPy, torch, JAX or whoever offers `__array__` or DLPack, in NumPy's hands; bfloat16 stays bfloat16.

    Args:
        what: it is, for sentences.

    Raises:
        UsageError: it is no array, or one of no numbers.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(f"{what} is a masked array: what the mask hides would be compared; fill or compress it first")
    array = _torch(value, what) if hasattr(value, "detach") else _taken(value, what)
    if array.dtype.kind not in "biuf" and array.dtype != ml_dtypes.bfloat16 and not is_float8(array.dtype):
        raise UsageError(f"{what} holds {array.dtype}, which is not compared: floats, integers and truth values are")
    if array.ndim > limits.TENSOR_AXES:
        raise UsageError(f"{what} has {array.ndim} axes: at most {limits.TENSOR_AXES} are compared; reshape it")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _taken(value: Any, what: str) -> NDArray[Any]:
    """What another library's array is for NumPy."""
    if not (hasattr(value, "__array__") or hasattr(value, "__dlpack__")):
        raise UsageError(f"{what} is a {type(value).__name__}, no array: it offers neither __array__ nor DLPack")
    try:
        return np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value)
    except (Exception, SystemExit) as error:  # whatever another library raises
        raise UsageError(f"{what} is a {type(value).__name__} that NumPy cannot take: {error}") from None


def _torch(value: Any, what: str) -> NDArray[Any]:
    """A torch tensor in place, bfloat16 and float8 by their bits: NumPy has no such dtypes of its own."""
    try:
        plain = value.detach().cpu().resolve_conj().resolve_neg()
        if str(plain.dtype) == "torch.bfloat16":
            bits: NDArray[Any] = plain.view(sys.modules["torch"].int16).numpy()
            return bits.view(ml_dtypes.bfloat16)
        if str(plain.dtype).startswith("torch.float8_"):
            octets: NDArray[Any] = plain.view(sys.modules["torch"].uint8).numpy()
            return octets.view(getattr(ml_dtypes, str(plain.dtype).removeprefix("torch.")))
        return np.asarray(plain.numpy())
    except Exception as error:  # whatever torch raises: sparse, quantised, on a device without memory of its own
        raise UsageError(f"{what} is a {type(value).__name__} that NumPy cannot take: {error}") from None


def _named(value: Mapping[Any, object], side: str) -> Arrays:
    taken: Arrays = {}
    for name, part in value.items():
        if str(name) in taken:
            raise UsageError(f"{side} names {name} twice")
        taken[str(name)] = partial(_given, array_of(part, f"{side}[{name!r}]"))
    return taken


def _given(array: NDArray[Any]) -> NDArray[Any]:
    return array


def _file(path: Path, side: str) -> Arrays:
    from parity.tensors.files import read_arrays

    taken: Arrays = {}
    for name, read in read_arrays(path, side):
        if name in taken:
            raise UsageError(f"{path} holds {name} twice")
        taken[name] = partial(_read, read, f"{path} {name}".strip())
    return taken


def _read(read: Callable[[], NDArray[Any]], what: str) -> NDArray[Any]:
    return array_of(read(), what)
