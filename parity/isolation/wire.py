"""Messages between parity and a device's process: a JSON header, then the bytes of arrays. Nothing is unpickled.

Message: 8 bytes, the header's length (little-endian); the header `{"said": ..., "arrays": [[dtype, shape], ...]}`; each
array's bytes, in C order. In `said`, `{"array": n}` stands for the n-th array and `{"tuple": [...]}` for a tuple.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

MOST_HEADER = 1 << 26
"""Bytes of a header: some thousand module names take a hundredth of it."""

MOST_BYTES = 1 << 36
"""Bytes of the arrays of a message, 64 GiB: the logits of 65,536 rows of a vocabulary of 200,000 in float32 are 49
GiB."""

MOST_ARRAYS = 4096
"""Arrays of a message: there is one for each rank."""

JOINED = 1 << 16
"""Bytes of arrays that are copied into one buffer with their header: a call of the system costs more than that."""

NUMBERS = (
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
DTYPES = {
    **{name: np.dtype(name) for name in NUMBERS},
    **{
        name: np.dtype(kind)
        for name, kind in vars(ml_dtypes).items()
        if isinstance(kind, type) and issubclass(kind, np.generic)
    },
}

PLAIN = {int: int.__int__, float: float.__float__, str: str.__str__}
"""What is said as it is, and how a subclass's value is taken: an enumeration prints itself as something else."""

ReadInto = Callable[[memoryview], None]
"""Fills a buffer with the next bytes."""


class Malformed(Exception):
    """What came is no message."""


def packed(said: Any) -> list[bytes | memoryview]:
    """A message as buffers to be sent one after the other.

    Raises:
        TypeError: it holds something that is neither plain nor an array of numbers.
    """
    arrays: list[np.ndarray] = []
    plain = _plain(said, arrays)
    header = json.dumps({"said": plain, "arrays": [[array.dtype.name, array.shape] for array in arrays]}).encode()
    bodies = [array.reshape(-1).view(np.uint8).data for array in arrays if array.size]
    whole: list[bytes | memoryview] = [len(header).to_bytes(8, "little") + header, *bodies]
    return [b"".join(whole)] if sum(map(len, bodies)) < JOINED else whole


def unpacked(read: ReadInto) -> Any:
    """Read one message.

    Raises:
        Malformed: it is none, or larger than its limits.
    """
    length = int.from_bytes(_bytes(read, 8), "little")
    if length > MOST_HEADER:
        raise Malformed(f"a header of {length} bytes")
    try:
        header = json.loads(_bytes(read, length))
        kinds = [(DTYPES[name], tuple(shape)) for name, shape in header["arrays"]]
        said = header["said"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Malformed("no header") from error
    if len(kinds) > MOST_ARRAYS or sum(_size(*kind) for kind in kinds) > MOST_BYTES:
        raise Malformed("arrays beyond every size")
    arrays = [_array(read, *kind) for kind in kinds]
    try:
        return _restored(said, arrays)
    except (KeyError, IndexError, TypeError, RecursionError) as error:
        raise Malformed("no content") from error


def _plain(value: Any, arrays: list[np.ndarray]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if kind := next((kind_ for kind_ in PLAIN if isinstance(value, kind_) and not isinstance(value, np.number)), None):
        return PLAIN[kind](value)
    if isinstance(value, tuple):
        return {"tuple": [_plain(item, arrays) for item in value]}
    if isinstance(value, list):
        return [_plain(item, arrays) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {str.__str__(key): _plain(item, arrays) for key, item in value.items()}}
    if not hasattr(value, "__array__"):
        raise TypeError(f"{type(value).__name__} is neither an array nor a number")
    array = np.asarray(value)
    if array.dtype.name not in DTYPES:
        raise TypeError(f"an array of {array.dtype}")
    arrays.append(np.ascontiguousarray(array, DTYPES[array.dtype.name]).reshape(array.shape))
    return {"scalar" if isinstance(value, np.generic) else "array": len(arrays) - 1}


def _restored(said: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(said, list):
        return [_restored(item, arrays) for item in said]
    if not isinstance(said, dict):
        return said
    if len(said) != 1:
        raise KeyError("one key says what a value is")
    ((kind, value),) = said.items()
    if kind == "dict":
        return {name: _restored(item, arrays) for name, item in value.items()}
    if kind == "tuple":
        return tuple(_restored(item, arrays) for item in value)
    if kind in ("array", "scalar"):
        return arrays[value] if kind == "array" else arrays[value][()]
    raise KeyError(kind)


def _size(dtype: np.dtype[Any], shape: tuple[Any, ...]) -> int:
    """Bytes of an array; too many for any message where it can be none."""
    sizes = all(type(size) is int and 0 <= size <= MOST_BYTES for size in shape)
    return dtype.itemsize * math.prod(shape) if sizes and len(shape) <= 32 else MOST_BYTES + 1


def _array(read: ReadInto, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    try:
        array = np.empty(shape, dtype)
    except MemoryError as error:
        raise Malformed(f"an array of {shape}") from error
    if array.size:
        read(array.reshape(-1).view(np.uint8).data)
    return array


def _bytes(read: ReadInto, count: int) -> bytes:
    buffer = bytearray(count)
    if count:
        read(memoryview(buffer))
    return bytes(buffer)
