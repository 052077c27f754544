"""NumPy's files and archives of them: no array is given room before the file is seen to hold it."""

from __future__ import annotations

import math
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from parity import files, limits
from parity.errors import UsageError

HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
MAGIC = b"\x93NUMPY"


def members(source: Path | BinaryIO, name: str) -> Mapping[str, Callable[[], np.ndarray]]:
    """The arrays of an .npz by name, or an .npy as '', each read when asked for.

    Raises:
        UsageError: it holds pickled objects, something else than arrays or a name twice, unfolds too far, or is no such file.
    """
    with files.opened(source) if isinstance(source, Path) else nullcontext(source) as file:
        bare, end = file.read(len(MAGIC)) == MAGIC, file.seek(0, 2)
        file.seek(0)
        if bare:
            array = _guarded(name, lambda: _array(file, end, mapped=isinstance(source, Path)))
            return {"": lambda: array}
    archive = _guarded(name, lambda: zipfile.ZipFile(source))
    refuse_unfolding(archive, name)
    names = [one.filename.removesuffix(".npy") for one in archive.infolist()]
    if odd := [one.filename for one in archive.infolist() if not one.filename.endswith(".npy")]:
        raise UsageError(f"{name}: {odd[0]} is no array")
    if twice := [one for one, count in Counter(names).items() if count > 1]:
        raise UsageError(f"{name} holds {twice[0]} twice")
    return {one.filename.removesuffix(".npy"): partial(_member, archive, one, name) for one in archive.infolist()}


def refuse_unfolding(archive: zipfile.ZipFile, name: str) -> None:
    """Refuse an archive by what its directory says; a member is read no further than that.

    Raises:
        UsageError: it holds too many files, or unfolds to too much.
    """
    found = archive.infolist()
    if len(found) > limits.ARCHIVE_MEMBERS:
        raise UsageError(f"{name} holds {len(found)} files, more than {limits.ARCHIVE_MEMBERS}")
    packed, whole = (sum(getattr(one, size) for one in found) for size in ("compress_size", "file_size"))
    if whole > max(packed, limits.UNFOLDED_BYTES):
        raise UsageError(f"{name} unfolds from {packed} bytes to {whole}: save large tensors uncompressed")


def refuse_packed(source: Path | BinaryIO, name: str) -> None:
    """As `refuse_unfolding`, of a torch file, whose archive torch itself would unfold.

    Raises:
        UsageError: it unfolds to too much, or is no regular file.
    """
    with files.opened(source) if isinstance(source, Path) else nullcontext(source) as file:
        if zipfile.is_zipfile(file):
            refuse_unfolding(_guarded(name, lambda: zipfile.ZipFile(file)), name)
        file.seek(0)


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> np.ndarray:
    def read() -> np.ndarray:
        with archive.open(member) as file:
            return _array(file, member.file_size)

    return _guarded(f"{name}: {member.filename}", read)


def _array(file: BinaryIO, end: int, mapped: bool = False) -> np.ndarray:
    """The array in a file of `end` bytes, read or mapped into memory.

    Raises:
        ValueError: it is none, of objects, or claims more than the file holds.
    """
    version = np.lib.format.read_magic(file)
    if version not in HEADER:
        raise ValueError(f"version {version[0]}.{version[1]} of the format")
    shape, columns_first, dtype = HEADER[version](file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects")
    if len(shape) > limits.AXES or not all(size >= 0 for size in shape):
        raise ValueError(f"shape {list(shape)[:10]}")
    size = dtype.itemsize * math.prod(shape)
    if size > end - file.tell():
        raise ValueError(f"shape {list(shape)} takes {size} bytes, the file has {end - file.tell()}")
    order = "F" if columns_first else "C"
    if mapped and size:
        return np.memmap(file, dtype, "r", file.tell(), shape, order)
    return np.frombuffer(file.read(size), dtype).reshape(shape, order=order)


def _guarded(name: str, read: Callable):
    """What a damaged file raises, as one sentence."""
    try:
        return read()
    except UsageError:
        raise
    except Exception as error:  # whatever a damaged file raises
        said = f"{str(error).partition(chr(10))[0]} ({type(error).__name__})"
        raise UsageError(f"{name} cannot be read without executing what it holds, or is damaged: {said}") from None
