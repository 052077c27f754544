"""The files of a dump as NumPy arrays: nothing behind a link, nothing that unfolds, nothing that executes code."""

from __future__ import annotations

import math
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TypeVar, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from parity import files, limits
from parity.errors import UsageError
from parity.golden import shards
from parity.imports.captured import TorchLoad

BESIDE = (".json", ".jsonl", ".toml", ".txt", ".md", ".log", ".csv", ".yaml", ".yml")
"""Kinds of files that lie beside tensors and hold none."""

EXECUTED = (".pkl", ".pickle", ".dill", ".joblib", ".cloudpickle")


def below(root: Path) -> list[Path]:
    """Every file of a folder, in the order of their paths; a file named alone is the only one.

    Raises:
        UsageError: one is a link, which could lead anywhere, or executes what it holds when it is read.
    """
    paths = sorted(islice(root.rglob("*"), limits.ARCHIVE_MEMBERS + 1)) if root.is_dir() else [root]
    if len(paths) > limits.ARCHIVE_MEMBERS:
        raise UsageError(f"{root} holds more than {limits.ARCHIVE_MEMBERS} files")
    for path in paths:
        if path != root and path.is_symlink():
            raise UsageError(f"{path} is a link, and a dump is read without following any: put there what it points to")
        refuse_executed(path)
        if not (path.is_file() or path.is_dir()):
            raise UsageError(f"{path} is no regular file")
    return [path for path in paths if path.is_file()]


def refuse_executed(path: Path) -> None:
    """Refuse a kind of file that executes what it holds when it is read, by its name.

    Raises:
        UsageError: it is one.
    """
    if path.suffix.lower() in EXECUTED:
        raise UsageError(f"{path} is a pickle: reading it could execute code; save .npy, .npz, .safetensors or .pt")


def of_kind(root: Path, kinds: Sequence[str]) -> list[Path]:
    """Its files of these suffixes.

    Raises:
        UsageError: there is none, or something that is neither such a file nor plain text lies among them; see `below`.
    """
    files = below(root)
    for path in files:
        if path.suffix not in (*kinds, *BESIDE):
            raise UsageError(f"{path} is none of {', '.join(kinds)}")
    wanted = [path for path in files if path.suffix in kinds]
    if not wanted:
        raise UsageError(f"{root} holds none of {', '.join(kinds)}")
    return wanted


HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
MAGIC = b"\x93NUMPY"


def members(source: Path | BinaryIO, name: str) -> Mapping[str, Callable[[], NDArray[Any]]]:
    """The arrays of an .npz by name, or an .npy as '', each read when asked for.

    Raises:
        UsageError: it holds pickled objects, something else than arrays or a name twice, unfolds too far, or is no
            such file.
    """
    with files.opened(source) if isinstance(source, Path) else nullcontext(source) as file:
        bare, end = file.read(len(MAGIC)) == MAGIC, file.seek(0, 2)
        file.seek(0)
        if bare:
            array = _guarded(name, lambda: _array(file, end, mapped=isinstance(source, Path)))
            return {"": lambda: array}
    if Path(name).suffix == ".npy":
        raise UsageError(f"{name} is {'no .npy file: it does not begin as one' if end else 'empty'}")
    archive = _guarded(name, lambda: zipfile.ZipFile(source))
    refuse_unfolding(archive, name)
    listed = archive.infolist()
    names = [member.filename.removesuffix(".npy") for member in listed]
    if odd := [member.filename for member in listed if not member.filename.endswith(".npy")]:
        raise UsageError(f"{name}: {odd[0]} is no array")
    if twice := [key for key, count in Counter(names).items() if count > 1]:
        raise UsageError(f"{name} holds {twice[0]} twice")
    return {key: partial(_member, archive, member, name) for key, member in zip(names, listed, strict=True)}


def refuse_unfolding(archive: zipfile.ZipFile, name: str) -> None:
    """Refuse an archive by what its directory says; a member is read no further than that.

    Raises:
        UsageError: it holds too many files, or unfolds to too much.
    """
    listed = archive.infolist()
    if len(listed) > limits.ARCHIVE_MEMBERS:
        raise UsageError(f"{name} holds {len(listed)} files, more than {limits.ARCHIVE_MEMBERS}")
    packed, whole = (sum(getattr(member, size) for member in listed) for size in ("compress_size", "file_size"))
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


def stored(path: Path) -> bool:
    """Whether a file is an archive that compresses nothing."""
    if not zipfile.is_zipfile(path):
        return False
    with _guarded(str(path), lambda: zipfile.ZipFile(path)) as archive:
        return all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    def read() -> NDArray[Any]:
        with archive.open(member) as file:
            return _array(file, member.file_size)

    return _guarded(f"{name}: {member.filename}", read)


def _array(file: IO[bytes], end: int, mapped: bool = False) -> NDArray[Any]:
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
    order: Literal["F", "C"] = "F" if columns_first else "C"
    if mapped and size:
        writable = cast(Any, file)  # NumPy's stub asks for that, whatever the mode
        mapping: NDArray[Any] = np.memmap(writable, dtype, "r", file.tell(), shape, order)
        return mapping
    flat: NDArray[Any] = np.frombuffer(file.read(size), dtype)
    return flat.reshape(shape, order=order)


T = TypeVar("T")


def _guarded(name: str, read: Callable[[], T]) -> T:
    """What a damaged file raises, as one sentence."""
    try:
        return read()
    except UsageError:
        raise
    except Exception as error:  # whatever a damaged file raises
        said = f"{str(error).partition(chr(10))[0]} ({type(error).__name__})"
        raise UsageError(f"{name} cannot be read without executing what it holds, or is damaged: {said}") from None


TORCH = (".pt", ".pth", ".bin")
ARRAYS = (".npy", ".npz", ".safetensors", *TORCH)


def held(
    path: Path, torch_load: TorchLoad, dtypes: Mapping[str, np.dtype[Any]] = shards.DTYPES
) -> list[tuple[str, Callable[[], NDArray[Any]]]]:
    """What an array file holds: the key ('' for a bare array) and how to read it.

    Args:
        dtypes: of safetensors, see `parity.golden.shards.read`.

    Raises:
        UsageError: the file cannot be read, or holds something else than tensors, or nothing.
    """
    readers: list[tuple[str, Callable[[], NDArray[Any]]]] = []
    if path.suffix in TORCH:
        values = leaves(torch_load(path, str(path)), path)
        readers += [(key, partial(tensor, value, f"{path} {key}".strip())) for key, value in values]
    elif path.suffix == ".safetensors":
        readers += [(key, partial(_itself, array)) for key, array in shards.read(path, dtypes).items()]
    else:
        readers += members(path, str(path)).items()
    if not readers:
        raise UsageError(f"{path} holds no tensor")
    return readers


def _itself(array: NDArray[Any]) -> NDArray[Any]:
    return array


def tensor(value: Any, name: str) -> NDArray[Any]:
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
            plain: NDArray[Any] = value.float().numpy() if narrow else value.numpy()
            return plain.astype(ml_dtypes.bfloat16) if narrow else plain
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
    ends, count, waiting = [], 0, [("", value)]
    while waiting:
        prefix, value = waiting.pop()
        if isinstance(value, dict):
            parts = [(str(key), part) for key, part in value.items()]
        elif isinstance(value, (list, tuple)) and not all(isinstance(part, (int, float)) for part in value):
            parts = [(str(number), part) for number, part in enumerate(value)]
        else:
            ends.append((prefix, value))
            continue
        count += 1 + len(parts)
        if count > limits.ARCHIVE_MEMBERS or prefix.count(".") > limits.DEPTH:
            raise UsageError(
                f"{path} holds more than {limits.ARCHIVE_MEMBERS} values, or a container that holds itself"
            )
        waiting += [(f"{prefix}.{key}" if prefix else key, part) for key, part in reversed(parts)]
    return ends


def read_json(path: Path, most: int = limits.RECORD_BYTES) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        UsageError: it cannot be read, or is none.
    """
    value = files.parsed(files.content(path, most), str(path))
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds no JSON object")
    return value
