"""Stages of a run on disk: each is written as it is made, and read again as often as it is asked for.

A spool with a name outlives its process. Each tensor in it is a record: eight bytes, the length of a header, little
end first; the header, as JSON; the tensor's bytes. The first record says which golden the spool is a part of. What was
half written when its writer died, or is damaged, is not there any more: it is made again, and so is what follows it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from parity import limits
from parity.errors import UsageError
from parity.golden import shards
from parity.partial import lock

DTYPES = {dtype.name: dtype for dtype in shards.DTYPES.values()}


@dataclass(frozen=True)
class Written:
    """Where a tensor lies in the file, and what it is."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def end(self) -> int:
        return self.start + self.dtype.itemsize * prod(self.shape)


class Spool(MutableMapping[tuple[int, str], NDArray[Any]]):
    """Tensors by round and stage, in a file.

    Args:
        folder: on whose disk a nameless file lies, which is gone with its process.
        name: of a file there that stays, and of which what is whole is taken up.
        golden: what that file is a part of; nothing of another one is taken up.

    Raises:
        UsageError: another process writes that file, or it is of another golden.
    """

    def __init__(self, folder: Path, name: str = "", golden: str = ""):
        self.path = folder / name
        self._file: IO[bytes] = (folder / name).open("a+b") if name else TemporaryFile(dir=folder)  # noqa: SIM115
        finalize(self, self._file.close)
        self._held: dict[tuple[int, str], Written] = {}
        self._named, self._end = bool(name), 0
        if name:
            self._take_up(golden)

    def __setitem__(self, place: tuple[int, str], value: NDArray[Any]) -> None:
        """Write a tensor, unless it is there already."""
        array = np.ascontiguousarray(value)
        if place in self._held and _same(self[place], array):
            return
        said = {"round": place[0], "stage": place[1], "dtype": array.dtype.name, "shape": array.shape}
        self._write(_header(said | ({"sha256": shards.digest(array)} if self._named else {})))
        start = self._end
        self._write(array.reshape(-1).view(np.uint8).data)
        self._held[place] = Written(start, array.shape, array.dtype)

    def __getitem__(self, place: tuple[int, str]) -> NDArray[Any]:
        return self._read(self._held[place])

    def __delitem__(self, place: tuple[int, str]) -> None:
        del self._held[place]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def _write(self, content: bytes | memoryview) -> None:
        left = memoryview(content)
        try:
            while len(left):
                done = os.write(self._file.fileno(), left)
                self._end, left = self._end + done, left[done:]
        except OSError as error:
            error.filename = str(self.path)
            raise

    def _read(self, written: Written) -> NDArray[Any]:
        array = np.empty(written.shape, written.dtype)
        left, start = array.reshape(-1).view(np.uint8).data, written.start
        while len(left):
            done = os.preadv(self._file.fileno(), [left], start)
            if not done:
                raise UsageError(f"{self.path}: what was written is not there any more")
            start, left = start + done, left[done:]
        return array

    def _take_up(self, golden: str) -> None:
        if not lock(self._file.fileno()):
            raise UsageError(f"{self.path} is being written by another command")
        for said, start in self._records():
            if self._end and (written := self._whole(said, start)):
                self._held[said["round"], said["stage"]] = written
                self._end = written.end
            elif not self._end and "golden" in said:
                if said["golden"] != golden:
                    raise UsageError(of_another(self.path.parent))
                self._end = start
            else:
                break
        os.ftruncate(self._file.fileno(), self._end)
        if not self._end:
            self._write(_header({"golden": golden}))

    def _records(self) -> Iterator[tuple[dict[str, Any], int]]:
        """The headers from the end of what is taken up on, and where each one's tensor begins."""
        size = os.fstat(self._file.fileno()).st_size
        while self._end + 8 <= size:
            length = int.from_bytes(os.pread(self._file.fileno(), 8, self._end), "little")
            if not 0 < length <= min(size - self._end - 8, limits.SPOOL_HEADER_BYTES):
                return
            try:
                said = json.loads(os.pread(self._file.fileno(), length, self._end + 8))
            except ValueError:
                return
            if not isinstance(said, dict):
                return
            yield said, self._end + 8 + length

    def _whole(self, said: dict[str, Any], start: int) -> Written | None:
        """A tensor whose bytes are all there and are those that its header tells."""
        if type(said.get("round")) is not int or type(said.get("stage")) is not str:
            return None
        try:
            written = Written(start, tuple(said["shape"]), DTYPES[said["dtype"]])
            if written.end > os.fstat(self._file.fileno()).st_size:
                return None
            return written if shards.digest(self._read(written)) == said["sha256"] else None
        except (KeyError, TypeError, ValueError):
            return None


def _header(said: dict[str, Any]) -> bytes:
    content = json.dumps(said).encode()
    return len(content).to_bytes(8, "little") + content


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def of_another(folder: Path) -> str:
    """What is said of parts of another golden."""
    return (
        f"{folder} is of another golden (other checkpoints, prompts, options or sources): remove it, or choose another "
        "--out"
    )
