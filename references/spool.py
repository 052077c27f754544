"""Stages of a run on disk: each is written as it is made, and read again as often as it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Written:
    """Where a tensor lies in the file, and what it is."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Spool(MutableMapping[tuple[int, str], NDArray[Any]]):
    """Tensors by round and stage, in a nameless file that is gone with its process.

    Args:
        folder: on whose disk it lies.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115 (it lives as long as this)
        finalize(self, self._file.close)
        self._held: dict[tuple[int, str], Written] = {}
        self._end = 0

    def __setitem__(self, place: tuple[int, str], value: NDArray[Any]) -> None:
        array = np.ascontiguousarray(value)
        left = array.reshape(-1).view(np.uint8).data
        self._held[place] = Written(self._end, array.shape, array.dtype)
        try:
            while len(left):
                done = os.pwrite(self._file.fileno(), left, self._end)
                self._end, left = self._end + done, left[done:]
        except OSError as error:
            error.filename = str(self.folder)
            raise

    def __getitem__(self, place: tuple[int, str]) -> NDArray[Any]:
        written = self._held[place]
        array = np.empty(written.shape, written.dtype)
        left, start = array.reshape(-1).view(np.uint8).data, written.start
        while len(left):
            done = os.preadv(self._file.fileno(), [left], start)
            if not done:
                raise OSError(f"{self.folder}: what was written is not there any more")
            start, left = start + done, left[done:]
        return array

    def __delitem__(self, place: tuple[int, str]) -> None:
        del self._held[place]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
