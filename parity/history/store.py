"""History as files: each has a name of its own, appears whole and is never rewritten; local or at any fsspec URL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date
from fnmatch import fnmatchcase
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from parity import limits
from parity.errors import UsageError
from parity.history import consistent
from parity.history.schema import migrated, moment, schema, table
from parity.nightly.folder import NIGHT, NightFolder
from parity.nightly.records import CellResult, Night
from parity.partial import write_whole
from parity.remote import INSTALL, ask, open_store
from parity.stages import matches

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

FILE = re.compile(r"date=(?P<date>\d{4}-\d\d-\d\d)/(?P<night>[^/]+)-[0-9a-f]{32}\.parquet$")
ACKNOWLEDGED = re.compile(r"acknowledged/[0-9a-f]{32}\.json$")
LOCAL = ("file", "local")
ANSWER = 120.0
"""Seconds that a store has for one answer: files of a night are small, and the next night is waiting."""


@dataclass(frozen=True)
class HistoryFile:
    """One file: its full name, and what the name says of the night."""

    path: str
    date: str
    night: str


class HistoryStore:
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

    def history_files(self) -> list[HistoryFile]:
        """Every file, by date and name.

        Raises:
            UsageError: a night has another name than nights have: it would be left out without a word.
        """
        self.files.invalidate_cache()
        try:
            paths = ask(self.url, lambda: self.files.find(self.root), ANSWER)
        except FileNotFoundError:
            return []
        named = [(path, FILE.search(path)) for path in sorted(paths)]
        if other := next((path for path, name in named if name is None and path.endswith(".parquet")), ""):
            due = "date=YYYY-MM-DD/NIGHT-(32 hexadecimal digits).parquet"
            raise UsageError(
                f"history file {other} has a name that no night has: it is {due}; rename it or move it away"
            )
        return [HistoryFile(path, name["date"], name["night"]) for path, name in named if name]

    def add(self, day: date, night: str, content: bytes) -> str:
        """A new file with this content; its full name."""
        return self._write(f"{self.root}/date={day.isoformat()}", f"{night}-{uuid4().hex}.parquet", content)

    def keep_acknowledgement(self, content: bytes) -> str:
        """A new file below `acknowledged`; its full name."""
        return self._write(f"{self.root}/acknowledged", f"{uuid4().hex}.json", content)

    def acknowledged(self) -> list[tuple[str, bytes]]:
        """Full name and content of every such file."""
        try:
            paths = sorted(ask(self.url, lambda: self.files.find(f"{self.root}/acknowledged"), ANSWER))
        except FileNotFoundError:
            return []
        return [(path, self._small(path)) for path in paths if ACKNOWLEDGED.search(path)]

    def _small(self, path: str) -> bytes:
        content: bytes | None = ask(self.url, lambda: self._content(path, limits.RECORD_BYTES), ANSWER)
        if content is None:
            raise UsageError(f"history file {path} is no regular file of at most {limits.RECORD_BYTES} bytes")
        return content

    def _write(self, folder: str, name: str, content: bytes) -> str:
        path = f"{folder}/{name}"
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

    def read(self, file: HistoryFile) -> pa.Table:
        """One file in this version's columns.

        Raises:
            UsageError: it is damaged, of another version, or its store does not answer.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            content = ask(self.url, lambda: self._content(file.path, limits.HISTORY_BYTES), ANSWER)
        except FileNotFoundError:
            raise UsageError(f"history file {file.path} is gone since it was listed; run the command again") from None
        try:
            if content is None:
                raise OSError(f"no regular file of at most {limits.HISTORY_BYTES} bytes")
            if pq.read_metadata(BytesIO(content)).num_rows > limits.HISTORY_ROWS:
                raise OSError(f"more than {limits.HISTORY_ROWS} rows")
            stored = pq.read_table(BytesIO(content), partitioning=None, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            why = str(error).split("\n")[0].rstrip(".")
            raise UsageError(
                f"history file {file.path} is damaged ({why}); move it away to continue without it"
            ) from None
        return migrated(stored, file.path)

    def _content(self, path: str, most: int) -> bytes | None:
        """A file's bytes; None where it is none, or too large."""
        info = self.files.info(path)
        return self.files.cat_file(path) if info["type"] == "file" and info["size"] <= most else None


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


def append(url: str, night: Night, results: Sequence[CellResult]) -> str:
    """Record what cells of a night found; the file written.

    The same night may be recorded again, as a resumed night is: the latest record of a cell counts.

    Raises:
        UsageError: no results, a night whose name fits no file, or a place that cannot be written.
    """
    store = HistoryStore(url)
    if not results:
        raise UsageError(f"night {night.name} has no results to record")
    if not re.fullmatch(r"[\w.+-]+", night.name):
        raise UsageError(f"night {night.name!r} has a name that fits no file")
    import pyarrow.parquet as pq

    content = BytesIO()
    pq.write_table(table(night, results), content, compression="zstd", write_page_checksum=True)
    return store.add(moment(night.started).astimezone(UTC).date(), night.name, content.getvalue())


def load(
    url: str,
    *,
    cell: str | None = None,
    stage: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    since: date | str | None = None,
    night: str | None = None,
    last: int | None = None,
    repeats: bool = False,
) -> pd.DataFrame:
    """The table, a row per night x cell x stage x metric, by night and in the order in which a cell found them.

    Args:
        cell, metric: globs. `stage` is one too, over the full name or its last part.
        since: nights of this date or later.
        night: this night alone.
        last: the latest nights only, this many of those that the other filters leave.
        repeats: with what cells found that were measured again within a night (`repeat` above 0).

    Returns:
        `schema.COLUMNS` and `date`; text columns are categories, `night` in the order of time.

    Raises:
        UsageError: there is no history here, or a file of it is damaged, newer, or contradicts itself or its name.
    """
    store = HistoryStore(url)
    if not (files := store.history_files()):
        raise UsageError(f"there is no history in {url}; `parity nightly --history {url}` writes it")
    import numpy as np
    import pyarrow as pa

    files = [file for file in files if (since is None or file.date >= str(since)) and night in (None, file.night)]
    if last is not None:
        by_date = sorted({file.night: file.date for file in files}.items(), key=lambda dated: (dated[1], dated[0]))
        kept = {name for name, _ in by_date[-last:]}
        files = [file for file in files if file.night in kept]
    tables = [store.read(file) for file in files]
    numbers = np.repeat(np.arange(len(tables)), [len(stored) for stored in tables])
    whole = pa.concat_tables(tables or [schema().empty_table()]).unify_dictionaries()
    frame = whole.to_pandas().assign(**{consistent.FILE: numbers})
    consistent.refuse_contradictions(frame, files)
    dates = [files[number].date for number in numbers]
    frame = _latest(frame.drop(columns=consistent.FILE).assign(date=dates))
    frame = frame if repeats else frame[frame["repeat"] == 0]
    return _filtered(frame, cell, stage, metric, mode)


def known_night(url: str, night: str) -> str:
    """The name of a night that this history has.

    Args:
        night: its name, or the folder that it is in.

    Raises:
        UsageError: it has no such night, or is none.
    """
    names = sorted({file.night for file in HistoryStore(url).history_files()})
    name = NightFolder(Path(night)).night.name if (Path(night) / NIGHT).is_file() else night
    if names and name not in names:
        meant = name if name == night else f"{name} (of {night})"
        raise UsageError(
            f"history has no night {meant}: its nights have names as {names[-1]} (`parity history --nights` lists "
            "them), or are meant by their folder"
        )
    return name


def _latest(frame: pd.DataFrame) -> pd.DataFrame:
    """One record of each night and cell: the one that was written last."""
    newest = frame.groupby(["night", "cell"], observed=True)["recorded"].transform("max")
    frame = frame[frame["recorded"] == newest]
    names = sorted(frame["night"].cat.categories)
    frame = frame.assign(night=frame["night"].cat.set_categories(names, ordered=True))
    return frame.sort_values(["started", "night"], kind="stable", ignore_index=True)


def _filtered(
    frame: pd.DataFrame, cell: str | None, stage: str | None, metric: str | None, mode: str | None
) -> pd.DataFrame:
    tests = {
        "cell": cell and (lambda name: fnmatchcase(name, cell)),
        "stage": stage and (lambda name: matches(stage, name)),
        "metric": metric and (lambda name: fnmatchcase(name, metric)),
        "mode": mode and (lambda name: name == mode),
    }
    for column, test in tests.items():
        if test:
            kept = [name for name in frame[column].cat.categories if test(name)]
            frame = frame[frame[column].isin(kept)]
    return frame.reset_index(drop=True)


def nights(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Each night with its date, commit and counts of cells by verdict, oldest first."""
    for name, rows in frame.groupby("night", observed=True, sort=False):
        cells = rows.drop_duplicates("cell")["cell_verdict"]
        first = rows.iloc[0]
        counts = {verdict: int(count) for verdict, count in cells.value_counts().items() if count}
        yield {
            "night": str(name),
            "date": str(first["date"]),
            "started": str(first["started"]),
            "commit": first["commit"],
            "dirty": bool(first["dirty"]),
            "machine": first["machine"],
            "cells": len(cells),
            "verdicts": counts,
        }
