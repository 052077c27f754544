"""Cells that are meant to be gone: who takes one out of the matrix says so once, and it is told as such."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field, StringConstraints, ValidationError

from parity.errors import UsageError
from parity.golden.provenance import now
from parity.history.changes import CELL, Change
from parity.history.store import HistoryStore
from parity.nightly.records import SCHEMA_VERSION, NightRecord

_Line = Annotated[
    str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]*\S[^\x00-\x1f\x7f]*$")
]


class Acknowledgement(NightRecord):
    """One file `acknowledged/NAME.json` of a history.

    Attributes:
        cell: glob over the cells' names.
        night: up to this night; one that comes back and is gone again later is told anew.
    """

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    cell: _Line
    because: _Line
    night: _Line
    made: _Line

    def covers(self, change: Change) -> bool:
        """Whether this is what was said of."""
        whole = change.kind == "gone" and change.stage == CELL
        return whole and fnmatchcase(change.cell, self.cell) and change.since_night <= self.night


def acknowledge(url: str, cell: str, because: str, night: str, changes: Sequence[Change]) -> tuple[str, ...]:
    """Keep that these cells are meant to be gone; their names.

    Args:
        cell: glob.
        changes: of the latest night, which is `night`.

    Raises:
        UsageError: no cell that is gone has such a name, or there is no reason.
    """
    gone = [change for change in changes if change.kind == "gone" and change.stage == CELL]
    try:
        said = Acknowledgement(cell=cell, because=because, night=night, made=now())
    except ValidationError:
        raise UsageError("--acknowledge and --because take one line each, of 500 characters at the most") from None
    names = tuple(change.cell for change in gone if said.covers(change))
    if not names:
        known = f"gone are {', '.join(change.cell for change in gone)}" if gone else "none is gone"
        raise UsageError(f"--acknowledge {cell}: no cell that is gone has such a name; up to night {night} {known}")
    HistoryStore(url).keep_acknowledgement(said.model_dump_json().encode())
    return names


def acknowledgements(url: str) -> tuple[Acknowledgement, ...]:
    """All of a history, oldest first.

    Raises:
        UsageError: one is damaged.
    """
    found = []
    for name, content in HistoryStore(url).acknowledged():
        try:
            found.append(Acknowledgement.model_validate_json(content))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"history file {name} is no acknowledgement ({where}: {first['msg']})") from None
    return tuple(sorted(found, key=lambda said: said.made))


def acknowledged(changes: Iterable[Change], said: Sequence[Acknowledgement]) -> list[Change]:
    """The changes, those that were said to be meant as such and last."""
    told = [_told(change, said) for change in changes]
    return sorted(told, key=lambda change: change.kind == "acknowledged")


def _told(change: Change, said: Sequence[Acknowledgement]) -> Change:
    one = next((one for one in said if one.covers(change)), None)
    if one is None:
        return change
    return replace(
        change, kind="acknowledged", sentence=f"{change.sentence}; acknowledged {one.made[:10]}: {one.because}"
    )
