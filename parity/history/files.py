"""Files of history: every one has a name of its own, appears whole and is never rewritten; local or any fsspec URL."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from parity import limits
from parity.errors import UsageError
from parity.history.schema import migrated
from parity.partial import write_whole
from parity.remote import INSTALL, ask, open_store

if TYPE_CHECKING:
    import pyarrow as pa

FILE = re.compile(r"date=(?P<date>\d{4}-\d\d-\d\d)/(?P<night>[^/]+)-[0-9a-f]{32}\.parquet$")
LOCAL = ("file", "local")
ANSWER = 120.0
"""Seconds that a store has for one answer: files of a night are small, and the next night is waiting."""


@dataclass(frozen=True)
class Part:
    """One file: its full name, and what the name says of the night."""

    path: str
    date: str
    night: str


class Store:
    """A folder of `date=2026-11-21/NIGHT-UUID.parquet`.

    Two writers never meet: every file has a name of its own. It appears whole: a local one is written beside and
    renamed, an object store gets it in a single put.

    Raises:
        UsageError: the URL's protocol is unknown or its package is not installed.
    """

    def __init__(self, url: str):
        _packages()
        self.url = str(url)
        self.files, self.root = open_store(self.url)

    def parts(self) -> list[Part]:
        """Every file, by date and name."""
        self.files.invalidate_cache()
        try:
            found = ask(self.url, lambda: self.files.find(self.root), ANSWER)
        except FileNotFoundError:
            return []
        named = ((path, FILE.search(path)) for path in sorted(found))
        return [Part(path, name["date"], name["night"]) for path, name in named if name]

    def add(self, day: date, night: str, content: bytes) -> str:
        """A new file with this content; its full name."""
        folder = f"{self.root}/date={day.isoformat()}"
        path = f"{folder}/{night}-{uuid4().hex}.parquet"
        try:
            if _protocol(self.files) in LOCAL:
                _write_local(folder, path, content)
            else:
                ask(self.url, lambda: self.files.pipe_file(path, content), ANSWER)
        except OSError as error:
            raise UsageError(f"history {path} cannot be written ({error.strerror or error})") from None
        except UsageError as error:
            raise UsageError(f"history {path} cannot be written ({error})") from None
        return path

    def read(self, part: Part) -> pa.Table:
        """One file in this version's columns.

        Raises:
            UsageError: it is damaged, of another version, or its store does not answer.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            content = ask(self.url, lambda: self._content(part), ANSWER)
        except FileNotFoundError:
            raise UsageError(f"history file {part.path} is gone since it was listed; run the command again") from None
        try:
            if content is None:
                raise OSError(f"no regular file of at most {limits.HISTORY_BYTES} bytes")
            if pq.read_metadata(BytesIO(content)).num_rows > limits.HISTORY_ROWS:
                raise OSError(f"more than {limits.HISTORY_ROWS} rows")
            found = pq.read_table(BytesIO(content), partitioning=None, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            why = str(error).split("\n")[0].rstrip(".")
            raise UsageError(f"history file {part.path} is damaged ({why}); move it away to go on without it") from None
        return migrated(found, part.path)

    def _content(self, part: Part) -> bytes | None:
        """A file's bytes; None where it is none, or too large."""
        there = self.files.info(part.path)
        fits = there["type"] == "file" and there["size"] <= limits.HISTORY_BYTES
        return self.files.cat_file(part.path) if fits else None


def _packages() -> None:
    try:
        import fsspec  # noqa: F401
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UsageError(f"history needs {error.name}: {INSTALL}") from None


def _protocol(files: Any) -> str:
    return files.protocol if isinstance(files.protocol, str) else files.protocol[0]


def _write_local(folder: str, path: str, content: bytes) -> None:
    os.makedirs(folder, exist_ok=True)
    write_whole(Path(path), content)
