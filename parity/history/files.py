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

if TYPE_CHECKING:
    import pyarrow as pa

FILE = re.compile(r"date=(?P<date>\d{4}-\d\d-\d\d)/(?P<night>[^/]+)-[0-9a-f]{32}\.parquet$")
LOCAL = ("file", "local")


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
        fsspec = _packages()
        self.url = str(url)
        try:
            self.files, self.root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise UsageError(f"history {self.url} cannot be opened: {error}") from None
        self.root = self.root.rstrip("/")

    def parts(self) -> list[Part]:
        """Every file, by date and name."""
        self.files.invalidate_cache()
        try:
            found = self.files.find(self.root)
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
                self.files.pipe_file(path, content)
        except OSError as error:
            raise UsageError(f"history {path} cannot be written ({error.strerror or error})") from None
        return path

    def read(self, part: Part) -> pa.Table:
        """One file in this version's columns.

        Raises:
            UsageError: it is damaged, of another version, or cannot be read.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            if self.files.info(part.path)["type"] != "file" or self.files.size(part.path) > limits.HISTORY_BYTES:
                raise OSError(f"no regular file of at most {limits.HISTORY_BYTES} bytes")
            content = BytesIO(self.files.cat_file(part.path))
            if pq.read_metadata(content).num_rows > limits.HISTORY_ROWS:
                raise OSError(f"more than {limits.HISTORY_ROWS} rows")
            content.seek(0)
            found = pq.read_table(content, partitioning=None, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            why = str(error).split("\n")[0].rstrip(".")
            raise UsageError(f"history file {part.path} is damaged ({why}); move it away to go on without it") from None
        return migrated(found, part.path)


def _packages() -> Any:
    try:
        import fsspec
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UsageError(f"history needs {error.name}: pip install 'parity-harness[nightly]'") from None
    return fsspec


def _protocol(files: Any) -> str:
    return files.protocol if isinstance(files.protocol, str) else files.protocol[0]


def _write_local(folder: str, path: str, content: bytes) -> None:
    os.makedirs(folder, exist_ok=True)
    write_whole(Path(path), content)
