"""The file of one cell's result: with the digest of its own bytes, as a manifest has one, and read with suspicion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from parity import files, limits
from parity.compare.report import FAIL, PASS, WARN
from parity.errors import UsageError
from parity.golden.digests import own_digest, sealed
from parity.nightly.records import CellResult, read_record

AGAIN = "delete it to have its cell measured again"


def write_result(path: Path, result: CellResult) -> None:
    """The file whole or not at all, its digest the last field."""
    files.put(path, sealed(json.loads(result.model_dump_json())))


def read_result(path: Path, night: str, cell: str, repeat: int) -> CellResult:
    """What this cell found on this night, when it was measured this time.

    Raises:
        UsageError: the file does not follow the schema, is not what was written, is another cell's or night's, or
            has a verdict against what it found.
    """
    result = read_record(CellResult, path)
    if not result.digest:
        raise UsageError(f"{path} has no digest: an older parity wrote it, or it was edited; {AGAIN}")
    if own_digest(files.content(path, limits.RECORD_BYTES)) != result.digest:
        raise UsageError(f"{path} is not what the night wrote: its digest does not agree with it; {AGAIN}")
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
