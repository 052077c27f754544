"""sha256 of what a dump names: files of checkpoints, each read once as long as it is unchanged; and a manifest's own.

A file's digest is remembered by its real path, size, inode, device, and the times at which its bytes (mtime) and its
entry (ctime) changed: in memory, and of large files below `parity.home.home()` for the next process. What this cannot
see is in docs/golden-format.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any

from parity import limits
from parity.errors import ParityError, UsageError
from parity.files import content, opened, parsed, put
from parity.home import home

if TYPE_CHECKING:
    from parity.golden.manifest import TensorRow

UNSETTLED_NS = 2_000_000_000
"""A file that changed this shortly before it is read may change again within one tick of its clock (FAT: 2 s), with no
mark of it: its digest is not remembered."""

KEPT_BYTES = 64 * limits.MIB
"""Files from this size on are remembered on disk as well; a smaller one is read again in 0.3 s (at 200 MB/s)."""

Mark = tuple[int, int, int, int, int]
"""Size, mtime and ctime in ns, inode and device of a file: what changes when the file does."""

_remembered: dict[str, tuple[Mark, str]] = {}


def digest_files(paths: Iterable[Path]) -> str:
    """sha256 over names and bytes of files in the order given; '' for none.

    Raises:
        UsageError: a file cannot be read.
    """
    names_and_digests = b"".join(os.fsencode(path.name) + digest_file(path) for path in paths)
    return hashlib.sha256(names_and_digests).hexdigest() if names_and_digests else ""


def digest_tensors(rows: Iterable[TensorRow]) -> str:
    """sha256 over names and digests of tensors: what a dump holds, wherever it lies and whenever it was made."""
    return hashlib.sha256(repr(sorted((row.variant, row.key, row.sha256) for row in rows)).encode()).hexdigest()


def digest_file(path: Path) -> bytes:
    """sha256 of a file's bytes, read only if it changed since it was last read.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with opened(path) as file:
            mark, name = _mark(file), os.path.realpath(path)
            known = _remembered.get(name) or _kept(name, mark)
            if known is not None and known[0] == mark:
                _remembered[name] = known
                return bytes.fromhex(known[1])
            read_ns = time_ns()
            digest = hash_file(file)
            if _mark(file) == mark and max(mark[1:3]) < read_ns - UNSETTLED_NS:
                _remember(name, mark, digest.hex())
            return digest
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from None


def hash_file(file: BufferedReader) -> bytes:
    """sha256 of an open file's bytes: reads all of it."""
    return hashlib.file_digest(file, "sha256").digest()


def _mark(file: BufferedReader) -> Mark:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def _remember(name: str, mark: Mark, digest: str) -> None:
    _remembered[name] = mark, digest
    if mark[0] >= KEPT_BYTES:
        with suppress(ParityError, OSError):  # a home that cannot be written costs time, nothing else
            place = _place(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            put(place, json.dumps({"file": name, "mark": mark, "sha256": digest}).encode())


def _kept(name: str, mark: Mark) -> tuple[Mark, str] | None:
    """What an earlier process remembered of a file; None where that is nothing, or not of the file as it is."""
    if mark[0] < KEPT_BYTES:
        return None
    with suppress(ParityError):
        place = _place(name)
        entry = parsed(content(place, limits.TEXT_BYTES), str(place)) if place.is_file() else None
        if isinstance(entry, dict) and (entry.get("file"), entry.get("mark")) == (name, list(mark)):
            digest = entry.get("sha256")
            return (mark, digest) if isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) else None
    return None


def _place(name: str) -> Path:
    """The file below home that remembers this file's digest: one for each path, replaced when the file changes."""
    return home() / "digests" / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}.json"


UNSEALED = "0" * 64
"""Stands in the place of the digest while the digest is taken."""

_LAST = re.compile(rb'"digest":\s{0,9}"([0-9a-f]{64})"\s{0,9}\}\s{0,9}\Z')


def sealed(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as JSON, with the digest over its own bytes as the last field: an edit by hand is seen."""
    fields = {name: value for name, value in manifest.items() if name != "digest"}
    data = json.dumps({**fields, "digest": UNSEALED}).encode()
    return data[: -len(UNSEALED) - 2] + own_digest(data).encode() + b'"}'


def own_digest(data: bytes) -> str:
    """sha256 of a manifest's bytes with zeros in the place of its digest; '' where that is not the last field."""
    last = _LAST.search(data, max(0, len(data) - 256))
    if not last:
        return ""
    first, end = last.span(1)
    total = hashlib.sha256(memoryview(data)[:first])
    total.update(UNSEALED.encode() + data[end:])
    return total.hexdigest()
