"""A night at an fsspec URL: another machine goes on with it, and an ended one outlives the machine that judged it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from parity import limits
from parity.errors import UsageError
from parity.files import content
from parity.nightly.folder import NIGHT, PARTS, NightFolder
from parity.nightly.records import CellResult
from parity.partial import partial_folder, write_whole
from parity.remote import ask, open_store

ANSWER = 120.0
"""Seconds that a store has for one answer: files of a night are small."""


def kept_night(out: str, nights: Path) -> KeptNight | None:
    """The night at an URL, with what the store has of it on this machine; None for a folder of this machine.

    Raises:
        UsageError: as `KeptNight` and its `fetch`.
    """
    if "://" not in out:
        return None
    if out.startswith(("file:", "local:")):
        raise UsageError(f"--out {out} is a folder of this machine: give its path")
    night = KeptNight(out, nights)
    night.fetch()
    return night


class KeptNight:
    """A night's folder on this machine, and the same files below an URL.

    The plan and each result are written once, and never over another one: of two machines that judge one night, the
    first result of a cell counts for both. A single put writes each whole. The page, JUnit and logs follow.

    Args:
        url: where the night is kept.
        nights: folder of this machine's nights.

    Raises:
        UsageError: the URL's protocol is unknown or its package is not installed.
    """

    def __init__(self, url: str, nights: Path):
        self.url = url.rstrip("/")
        self.files, self.root = open_store(self.url)
        named = hashlib.sha256(self.url.encode()).hexdigest()[:8]
        self.path = nights / f"{self.url.rpartition('/')[2]}-{named}"

    def fetch(self) -> None:
        """What the store has and this machine lacks; nothing where there is no such night yet.

        Raises:
            UsageError: the store does not answer, has another night than this machine has, or a result that no night
                wrote.
        """
        self.files.invalidate_cache()
        plan = self._read(NIGHT)
        if plan is None:
            return
        if self.path.exists():
            if content(self.path / NIGHT, limits.RECORD_BYTES) != plan:
                raise UsageError(f"{self.url} and {self.path} are different nights; delete one of them")
        else:
            self._begun(plan)
        for name in self._results():
            if not (self.path / name).exists() and (data := self._read(name)) is not None:
                write_whole(self.path / name, data)
        try:
            NightFolder(self.path).measured()
        except UsageError as error:
            raise UsageError(f"{error}; it lies below {self.url} as well") from None

    def begin(self, folder: NightFolder) -> None:
        """Keep the plan, unless it is there, and what an earlier command could not keep.

        Raises:
            UsageError: the store does not take it, or another machine began this night at the same moment.
        """
        plan = content(folder.path / NIGHT, limits.RECORD_BYTES)
        if self._first(NIGHT, plan) != plan:
            if folder.measured():
                raise UsageError(f"{self.url} and {folder.path} are different nights; delete one of them")
            shutil.rmtree(folder.path)
            raise UsageError(f"another machine began {self.url} just now; the same command goes on with its night")
        for result in folder.measured():
            self.keep(folder, result)

    def keep(self, folder: NightFolder, result: CellResult) -> None:
        """Keep what a cell found; where another machine was first, what it found takes this one's place.

        Raises:
            UsageError: the store does not take it.
        """
        file = folder.result_file(result.cell.name, result.repeat)
        mine = content(file, limits.RECORD_BYTES)
        kept = self._first(str(file.relative_to(folder.path)), mine)
        if kept != mine:
            write_whole(file, kept)

    def end(self, folder: NightFolder) -> None:
        """Keep every result that is not kept yet, and what is written at the end of a night.

        Raises:
            UsageError: the store does not take it.
        """
        for result in folder.measured():
            self.keep(folder, result)
        for path in _others(folder.path):
            target = f"{self.root}/{path.relative_to(folder.path)}"
            self._ask(partial(self.files.put_file, str(path), target))

    def _begun(self, plan: bytes) -> None:
        with partial_folder(self.path) as begun:
            for part in PARTS:
                (begun / part).mkdir()
            (begun / NIGHT).write_bytes(plan)
            begun.rename(self.path)

    def _results(self) -> Iterator[str]:
        """Names of results that the store has, below the night's folder."""
        for part in ("cells", "again"):
            found: list[str] = self._ask(partial(self.files.find, f"{self.root}/{part}"), [])
            names = sorted(path.rpartition("/")[2] for path in found)
            yield from (f"{part}/{name}" for name in names if name.endswith(".json"))

    def _first(self, name: str, data: bytes) -> bytes:
        """Write a file that is not there; what is there then."""
        target = f"{self.root}/{name}"

        def put() -> bytes:
            try:
                self.files.pipe_file(target, data, mode="create")
            except FileExistsError:
                return b""
            return data

        there: bytes | None = self._ask(put) or self._read(name)
        if there is None:
            raise UsageError(f"{self.url}/{name} was there and is gone")
        return there

    def _read(self, name: str) -> bytes | None:
        """A file's bytes; None where there is none."""
        path, most = f"{self.root}/{name}", limits.RECORD_BYTES + 1
        data: bytes | None = self._ask(lambda: self.files.cat_file(path, end=most), None)
        if data is not None and len(data) > limits.RECORD_BYTES:
            raise UsageError(f"{self.url}/{name} is larger than {limits.RECORD_BYTES // limits.MIB} MiB")
        return data

    def _ask(self, question: Callable[[], Any], *absent: Any) -> Any:
        try:
            return ask(self.url, question, ANSWER)
        except FileNotFoundError as error:
            if absent:
                return absent[0]
            raise UsageError(f"{self.url} cannot be written: {error}") from None


def _others(folder: Path) -> Iterator[Path]:
    """Files of a night that are no records, partial ones left out."""
    parts = [folder, *(folder / part for part in PARTS)]
    files = (path for part in parts if part.is_dir() for path in sorted(part.iterdir()) if path.is_file())
    return (path for path in files if path.suffix != ".json" and not path.name.startswith("."))
