"""Whose tensor is whose: a map from the names of what was computed to those of what should have been, as TOML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from parity import limits
from parity.errors import UsageError
from parity.files import toml
from parity.imports.names import FIELD, MapPart, filled, pattern
from parity.imports.placing import split
from parity.tensors.inputs import Arrays
from parity.validation import first_mistake

LETTERS = ascii_lowercase[: limits.AXES]


class PairRow(MapPart):
    """One row: tensors of one form of names, and what they are called on the other side; the first that matches counts.

    Args:
        name: a regular expression (RE2) over the whole name in actual.
        to: the name in expected, with groups of `name` in braces: `{l}`, `{l+1}`, `{l:02}` in two digits.
        axes: those of actual, in letters of expected's (`a` is its first): another order, `b*c` two in one, `B` of
            size 1; the same as expected's by default.
        ignore: why such a tensor is not compared, instead of `to`; it holds for the names of both sides.
        optional: the row may match nothing.
    """

    name: str
    to: str = ""
    axes: tuple[str, ...] = Field(default=(), max_length=limits.AXES + 1)
    ignore: str = ""
    optional: bool = False

    @model_validator(mode="after")
    def _whole(self) -> PairRow:
        groups = pattern(self.name).groupindex
        if bool(self.to) == bool(self.ignore):
            raise ValueError(f"row {self.name!r} needs one of to and ignore")
        for field in FIELD.finditer(self.to):
            if field[1] not in groups:
                raise ValueError(f"row {self.name!r} names {field[0]}, which is no group of it")
        if self.axes and sorted(self.letters) != list(LETTERS[: len(self.letters)]):
            raise ValueError(f"row {self.name!r} has axes {list(self.axes)}: each of a, b, … once, and B")
        return self

    @property
    def letters(self) -> list[str]:
        """Expected's axes in the order of actual's."""
        return [letter for axis in self.axes for letter in axis.split("*") if letter != "B"]

    def arranged(self, read: Any, expected: Any, name: str) -> NDArray[Any]:
        """A tensor of actual with expected's axes.

        Args:
            read, expected: read the two.

        Raises:
            UsageError: it has another number of axes.
        """
        array, axes, sizes = read(), self.axes, expected().shape
        if array.ndim != len(axes) or len(sizes) != len(self.letters):
            said = f"{name} has shape {list(array.shape)}, expected {list(sizes)}"
            raise UsageError(f"{said}: that is not what map row {self.name!r} says with axes {list(axes)}")
        if "B" in axes and array.shape[axes.index("B")] == 1:
            array, axes = array.squeeze(axes.index("B")), tuple(axis for axis in axes if axis != "B")
        array, axes = split(array, axes, dict(zip(LETTERS, sizes, strict=False)), name)
        return array.transpose([axes.index(letter) for letter in LETTERS[: len(axes)]])


class PairMap(MapPart):
    """A whole map file."""

    rows: tuple[PairRow, ...] = Field(default=(), alias="row", max_length=limits.ROWS)

    def row(self, name: str) -> tuple[PairRow, Mapping[str, Any]] | None:
        """The first row that matches, and its groups."""
        for row in self.rows:
            if match := pattern(row.name).fullmatch(name):
                return row, match.groupdict()
        return None


def read_pairs(path: Path) -> PairMap:
    """Read a map.

    Raises:
        UsageError: it cannot be read, or a field is wrong.
    """
    try:
        return PairMap.model_validate(toml(path, "map")[0])
    except ValidationError as error:
        raise UsageError(f"map {path}: {first_mistake(error)}") from None


def paired(actual: Arrays, expected: Arrays, names: PairMap) -> tuple[Arrays, Arrays, dict[str, str]]:
    """Actual under expected's names, expected, both without what a row ignores, and why each of that is ignored.

    A name that no row matches stays as it is.

    Raises:
        UsageError: two tensors get one name, or a row matches nothing.
    """
    used: set[PairRow] = set()
    ignored: dict[str, str] = {}
    renamed: dict[str, str] = {}
    made: Arrays = {}
    for name, read in actual.items():
        row, groups = names.row(name) or (None, {})
        used |= {row} if row else set()
        if row and row.ignore:
            ignored[name] = row.ignore
            continue
        to = filled(row.to, groups, name) if row else name
        if to in made:
            raise UsageError(f"map: {renamed[to]} and {name} both become {to}")
        renamed[to] = name
        turned = row is not None and row.axes and to in expected
        made[to] = partial(row.arranged, read, expected[to], name) if row and turned else read
    left: Arrays = {}
    for name, read in expected.items():
        matching = None if name in made else names.row(name)
        if matching and matching[0].ignore:
            used.add(matching[0])
            ignored[name] = matching[0].ignore
        else:
            left[name] = read
    _refuse_idle(names.rows, used)
    return made, left, ignored


def _refuse_idle(rows: Sequence[PairRow], used: set[PairRow]) -> None:
    for number, row in enumerate(rows):
        if row not in used and not row.optional:
            raise UsageError(f"map: row {number} ({row.name!r}) matches no name")
