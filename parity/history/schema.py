"""The table: one row per night x cell x stage x metric, its explicit schema, and the way from older ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from parity.errors import UsageError
from parity.nightly.records import CellResult, Night

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 3
KEY = b"parity.history.schema_version"

TEXT = (
    "night", "commit", "machine", "engine", "cell", "case", "device", "device_spec", "family", "policy",
    "precision", "stage", "mode", "metric", "unit", "better", "verdict", "cell_verdict", "golden", "left_out",
)  # fmt: skip
COLUMNS = (
    "schema_version", "night", "started", "recorded", "commit", "dirty", "machine", "engine", "cell", "case", "device",
    "device_spec", "family", "k", "tp", "policy", "precision", "repeat", "stage", "mode", "metric", "value", "unit",
    "better", "verdict", "bound", "low", "high", "cell_verdict", "golden", "left_out",
)  # fmt: skip
"""Columns of a file; `load` adds `date`, which is the partition."""

Migration = Callable[["pa.Table"], "pa.Table"]


def _unrepeated(stored: pa.Table) -> pa.Table:
    """Version 1 knew no repeats: every row is a night's first."""
    import pyarrow as pa

    return stored.append_column("repeat", pa.array([0] * len(stored), pa.int16()))


def _of_any_golden(stored: pa.Table) -> pa.Table:
    """Version 2 knew neither the golden of a cell nor the cells that a night left out."""
    import pyarrow as pa

    for name in ("golden", "left_out"):
        stored = stored.append_column(name, pa.array([""] * len(stored), pa.string()))
    return stored


MIGRATIONS: dict[int, Migration] = {1: _unrepeated, 2: _of_any_golden}
"""From a version to the next: applied one after the other on reading. Files are never rewritten."""


def schema() -> pa.Schema:
    """The columns of a file of this version."""
    import pyarrow as pa

    text, moment = pa.dictionary(pa.int32(), pa.string()), pa.timestamp("us", tz="UTC")
    numbers = {
        "schema_version": pa.int16(),
        "k": pa.int32(),
        "tp": pa.int32(),
        "repeat": pa.int16(),
        "dirty": pa.bool_(),
    }
    kinds = dict.fromkeys(TEXT, text) | {"started": moment, "recorded": moment} | numbers
    nullable = ("value", "bound", "low", "high")
    fields = [pa.field(name, kinds.get(name, pa.float64()), nullable=name in nullable) for name in COLUMNS]
    return pa.schema(fields, metadata={KEY: str(VERSION).encode()})


def table(night: Night, results: Sequence[CellResult]) -> pa.Table:
    """What a night's cells found, in the order in which they found it."""
    import pyarrow as pa

    rows = list(_rows(night, results))
    return pa.Table.from_pylist(rows, schema=schema())


def _rows(night: Night, results: Sequence[CellResult]) -> Iterator[dict[str, Any]]:
    shared = dict(
        schema_version=VERSION,
        night=night.name,
        started=moment(night.started),
        recorded=datetime.now(UTC),
        commit=night.commit,
        dirty=night.dirty,
        machine=night.machine,
        engine=night.engine,
        left_out=" ".join(_left_out(night, results)),
    )
    for result in results:
        cell = result.cell
        mine = dict(
            cell=cell.name,
            device_spec=cell.device,
            precision=cell.precision,
            repeat=result.repeat,
            cell_verdict=result.verdict,
            golden=result.golden_digest,
        )
        axes = cell.axes.model_dump()
        for metric in result.metrics:
            figure = metric.model_dump()
            yield {**shared, **mine, **axes, "metric": figure.pop("name"), **figure}


def _left_out(night: Night, results: Sequence[CellResult]) -> list[str]:
    """Cells that the matrix has and the night did not judge."""
    judged = {result.cell.name for result in results}
    return [name for name in (*(cell.name for cell in night.cells), *night.left_out) if name not in judged]


def moment(text: str) -> datetime:
    """A night's start, with its zone.

    Raises:
        UsageError: no ISO 8601 time.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"a night that starts at {text!r} has no place in history: no ISO 8601 time") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def migrated(stored: pa.Table, name: str) -> pa.Table:
    """A table read from a file, in this version's columns.

    Raises:
        UsageError: the file is newer, of no version, or of one from which no way leads here.
    """
    version = _version(stored, name)
    if version > VERSION:
        raise UsageError(
            f"history file {name} has schema version {version}, this parity reads up to {VERSION}: update parity"
        )
    for step in range(version, VERSION):
        if step not in MIGRATIONS:
            raise UsageError(
                f"history file {name} has schema version {version}, from which no migration leads to {VERSION}"
            )
        stored = MIGRATIONS[step](stored)
    if missing := [column for column in COLUMNS if column not in stored.column_names]:
        raise UsageError(f"history file {name} is damaged: no column {missing[0]}")
    return stored.select(COLUMNS).cast(schema())


def _version(stored: pa.Table, name: str) -> int:
    try:
        return int((stored.schema.metadata or {})[KEY])
    except (KeyError, ValueError):
        raise UsageError(f"history file {name} was not written by parity: it names no schema version") from None
