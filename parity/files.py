"""Files from outside: regular ones only, of a limited size and depth, inside the folder that names them."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

from parity import limits
from parity.errors import UsageError
from parity.partial import write_whole


def opened(path: Path, what: str = "") -> BufferedReader:
    """Open a regular file; a pipe, device or folder would block, or never end.

    Args:
        what: it is, for the sentence: `policy`.

    Raises:
        UsageError: it is none, or cannot be read.
    """
    named = f"{what} {path}".strip()
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UsageError(f"{named} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise UsageError(f"{named} cannot be read (no regular file)")
    return os.fdopen(number, "rb")


def content(path: Path, most: int, what: str = "") -> bytes:
    """The bytes of a regular file, at most so many.

    Raises:
        UsageError: it cannot be read, or is larger.
    """
    with opened(path, what) as file:
        try:
            data = file.read(most + 1)
        except OSError as error:
            raise UsageError(f"{f'{what} {path}'.strip()} cannot be read ({error.strerror})") from None
    if len(data) > most:
        raise UsageError(
            f"{f'{what} {path}'.strip()} is larger than {most // limits.MIB} MiB, more than is read of such a file"
        )
    return data


def inside(folder: Path, name: str, by: str) -> Path:
    """The file of this name in a folder, and nowhere else.

    Args:
        by: who names it, for the sentence.

    Raises:
        UsageError: the name is a path, or the file is a link that leads out of the folder.
    """
    path = folder / name
    if not name or name in (".", "..") or Path(name).name != name or "\\" in name or "\0" in name:
        raise UsageError(f"{by} names {name!r}, which is no file name: nothing outside its folder is read")
    if path.is_symlink() and os.path.dirname(os.path.realpath(path)) != os.path.realpath(folder):
        raise UsageError(f"{path} is a link that leads out of its folder: nothing outside is read")
    return path


def parsed(data: bytes, named: str) -> Any:
    """JSON, no object of which has a key twice.

    Raises:
        UsageError: it is none, or holds more or deeper values than are read.
    """
    if values(data) > limits.VALUES:
        raise UsageError(f"{named} holds more than {limits.VALUES} values")
    try:
        return json.loads(data, object_pairs_hook=once)
    except RecursionError:
        raise UsageError(f"{named} is nested too deep") from None
    except ValueError as error:
        raise UsageError(f"{named} is no JSON: {error}") from None


def config_of(folder: Path) -> dict[str, Any]:
    """The config.json of a checkpoint.

    Raises:
        UsageError: it cannot be read, or is no JSON object.
    """
    path = folder / "config.json"
    config = parsed(content(path, limits.CONFIG_BYTES), str(path))
    if not isinstance(config, dict):
        raise UsageError(f"{path} is no JSON object")
    return config


def values(data: bytes) -> int:
    """At most so many values are in this JSON: counted before it is parsed."""
    return sum(map(data.count, (b",", b"[", b"{")))


def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; for `object_pairs_hook`.

    Raises:
        ValueError: it has a key twice, of which JSON would keep the last.
    """
    keyed = dict(pairs)
    if len(keyed) < len(pairs):
        raise ValueError(f"one of {', '.join(list(keyed)[:3])} … is there twice")
    return keyed


def toml(path: Path, what: str) -> tuple[dict[str, Any], bytes]:
    """A TOML file, and its bytes.

    Args:
        what: it is, for the sentences: `policy`.

    Raises:
        UsageError: it cannot be read, or is none.
    """
    data = content(path, limits.TEXT_BYTES, what)
    try:
        table = tomllib.loads(data.decode())
    except RecursionError:
        raise UsageError(f"{what} {path} is nested too deep") from None
    except ValueError as error:  # UnicodeDecodeError, TOMLDecodeError, and numbers of too many digits
        raise UsageError(f"{what} {path} is not TOML: {error}") from None
    if _depth(table) > limits.DEPTH:
        raise UsageError(f"{what} {path} is nested too deep")
    return table, data


def _depth(value: Any) -> int:
    """Containers within containers."""
    depth, level = 0, [value]
    while level := [part for one in level for part in _parts(one)]:
        depth += 1
    return depth


def _parts(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def put(path: Path, data: bytes, named: str = "") -> None:
    """Write a file whole or not at all: beside its place, then renamed; a pipe or device is written to as it is.

    Args:
        named: what it is, for the sentence; its path by default.

    Raises:
        UsageError: it cannot be written; what was there before is there still.
    """
    try:
        write_whole(path, data)
    except OSError as error:
        raise UsageError(f"{named or path} cannot be written ({error.strerror or error})") from None
