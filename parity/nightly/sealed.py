"""The files of a night, its plan and its results: each has the digest of its own bytes, as a manifest has one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from parity import files, limits
from parity.compare.report import FAIL, PASS, WARN
from parity.errors import UsageError
from parity.golden.digests import own_digest, sealed
from parity.nightly.records import CellResult, Night, read_record

AGAIN = "delete it to have its cell measured again"
ANEW = "a night of another folder begins anew"

Sealed = TypeVar("Sealed", CellResult, Night)


def write_sealed(path: Path, record: CellResult | Night, name: str = "") -> None:
    """The file whole or not at all, its digest the last field; `name` is its own in sentences, where it will move."""
    files.put(path, sealed(json.loads(record.model_dump_json())), name)


def read_sealed(kind: type[Sealed], path: Path, advice: str) -> Sealed:
    """A record as it was written.

    Raises:
        UsageError: the file does not follow the schema, or is not what was written.
    """
    record = read_record(kind, path)
    if not record.digest:
        raise UsageError(f"{path} has no digest: an older parity wrote it, or it was edited; {advice}")
    if own_digest(files.content(path, limits.RECORD_BYTES)) != record.digest:
        raise UsageError(f"{path} is not what the night wrote: its digest does not agree with it; {advice}")
    return record


def read_result(path: Path, night: str, cell: str, repeat: int) -> CellResult:
    """What this cell found on this night, when it was measured this time.

    Raises:
        UsageError: the file does not follow the schema, is not what was written, is another cell's or night's, or
            has a verdict against what it found.
    """
    result = read_sealed(CellResult, path, AGAIN)
    if (result.night, result.cell.name, result.repeat) != (night, cell, repeat):
        raise UsageError(f"{path} is a result of {result.title} in night {result.night}, not this one's; {AGAIN}")
    if against := next(_against(result), ""):
        raise UsageError(f"{path} contradicts itself: its verdict is {result.verdict}, and {against}; {AGAIN}")
    return result


def _against(result: CellResult) -> Iterator[str]:
    """What no cell of this verdict has, in words."""
    if result.verdict == FAIL and not result.first:
        yield "it names no place"
    if result.verdict not in (PASS, WARN):
        return
    if result.error:
        yield f"it broke: {result.error}"
    yield from (f"it found: {finding}" for finding in result.findings)
    yield from (f"gate {gate.get('gate')} fails" for gate in result.gates if gate.get("verdict") == FAIL)
    for mode, stages in result.stages.items():
        yield from (f"{stage.get('stage')} ({mode}) fails" for stage in stages if stage.get("verdict") == FAIL)
