"""From a matrix to its cells: the product of the axes, thinned by `only` and `exclude`, then what `include` adds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from parity import limits
from parity.errors import UsageError
from parity.nightly.matrix import Axes as Patterns
from parity.nightly.matrix import Include, Matrix
from parity.nightly.records import Axes, Cell

ORDER = ("case", "device", "family", "k", "tp", "policy")


def cells(matrix: Matrix) -> tuple[Cell, ...]:
    """Every cell, in the order of the axes.

    Raises:
        UsageError: a row matches nothing, a cell is there twice, or none is left.
    """
    sizes = (len(matrix.families_of(case)) for case in matrix.cases)
    _few(matrix, sum(sizes) * math.prod(map(len, (matrix.devices, matrix.k, matrix.tp, matrix.policies))))
    found = [axes for case in matrix.cases for axes in _product(matrix, case)]
    found = _thinned(matrix, found)
    said: dict[Axes, dict[str, Any]] = {axes: {} for axes in found}
    for number, row in enumerate(matrix.include):
        _include(matrix, row, f"include.{number}", said)
        _few(matrix, len(said))
    if not said:
        raise UsageError(f"{matrix.path}: no cell is left")
    made = [_cell(matrix, axes, settings) for axes, settings in said.items()]
    lower = Counter(cell.name.lower() for cell in made)
    if twice := [cell.name for cell in made if lower[cell.name.lower()] > 1]:
        raise UsageError(f"{matrix.path}: {twice[0]} and {twice[1]} are one name where files know no case")
    return tuple(made)


def _few(matrix: Matrix, count: int) -> None:
    if count > limits.CELLS:
        raise UsageError(f"{matrix.path}: {count} cells are more than {limits.CELLS} in one night")


def chosen(planned: Iterable[Cell], globs: Iterable[str]) -> tuple[Cell, ...]:
    """The cells whose name one of the globs matches; all of them without a glob.

    Raises:
        UsageError: a glob matches none.
    """
    planned, globs = tuple(planned), tuple(globs)
    for glob in globs:
        if not any(fnmatchcase(cell.name, glob) for cell in planned):
            raise UsageError(f"--only {glob}: no cell has such a name; `parity nightly --dry-run` lists them")
    return tuple(cell for cell in planned if not globs or any(fnmatchcase(cell.name, glob) for glob in globs))


def _product(matrix: Matrix, case: str) -> Iterator[Axes]:
    rest = (matrix.devices, matrix.families_of(case), _once(matrix, "k"), _once(matrix, "tp"), matrix.policies)
    for values in product(*rest):
        yield Axes(**dict(zip(ORDER, (case, *values), strict=True)))


def _once(matrix: Matrix, axis: str) -> tuple[int, ...]:
    values = getattr(matrix, axis)
    if twice := [value for value, count in Counter(values).items() if count > 1]:
        raise UsageError(f"{matrix.path}: {axis} names {twice[0]} twice: two cells with one name")
    return values


def _thinned(matrix: Matrix, found: list[Axes]) -> list[Axes]:
    for number, row in enumerate(matrix.only):
        _matching(matrix, row, f"only.{number}", found)
    if matrix.only:
        found = [axes for axes in found if any(_fits(row, axes) for row in matrix.only)]
    for number, row in enumerate(matrix.exclude):
        gone = _matching(matrix, row, f"exclude.{number}", found)
        found = [axes for axes in found if axes not in gone]
    return found


def _matching(matrix: Matrix, row: Patterns, where: str, found: Iterable[Axes]) -> list[Axes]:
    if not row.named:
        raise UsageError(f"{matrix.path}: {where} names no axis")
    matched = [axes for axes in found if _fits(row, axes)]
    if not matched:
        raise UsageError(f"{matrix.path}: {where} matches no cell")
    return matched


def _fits(row: Patterns, axes: Axes) -> bool:
    return all(any(_alike(getattr(axes, axis), one) for one in wanted) for axis, wanted in row.named.items())


def _alike(value: str | int, pattern: str | int) -> bool:
    return fnmatchcase(value, pattern) if isinstance(value, str) else value == pattern


def _include(matrix: Matrix, row: Include, where: str, said: dict[Axes, dict[str, Any]]) -> None:
    """Settings for the cells it matches; where it matches none, the cells it names."""
    if not row.named:
        raise UsageError(f"{matrix.path}: {where} names no axis")
    matched = [axes for axes in said if _fits(row, axes)]
    for axes in matched or _named(matrix, row, where):
        if axes in said and not row.said:
            raise UsageError(f"{matrix.path}: {where}: {axes.name} is there already: two cells with one name")
        said[axes] = said.get(axes, {}) | row.said


def _named(matrix: Matrix, row: Include, where: str) -> Iterator[Axes]:
    """The cells an include spells out: known labels, and one value where the matrix has only one for an axis."""
    for case in _labels(matrix, row, where, "case", matrix.cases):
        families = matrix.families_of(case)
        known = {
            "device": matrix.devices,
            "family": families,
            "k": matrix.k,
            "tp": matrix.tp,
            "policy": matrix.policies,
        }
        wanted = [_labels(matrix, row, where, axis, known[axis]) for axis in ORDER[1:]]
        _few(matrix, math.prod(map(len, wanted)))
        for values in product(*wanted):
            yield Axes(**dict(zip(ORDER, (case, *values), strict=True)))


def _labels(matrix: Matrix, row: Include, where: str, axis: str, known: Iterable) -> tuple:
    known, wanted = tuple(known), row.named.get(axis)
    if wanted is None and len(known) == 1:
        return known
    if wanted is None:
        raise UsageError(f"{matrix.path}: {where} matches no cell and adds none: it names no {axis}")
    if unknown := [one for one in wanted if isinstance(one, str) and one not in known]:
        raise UsageError(f"{matrix.path}: {where}: {axis} {unknown[0]!r} is none of {', '.join(map(str, known))}")
    return wanted


def _cell(matrix: Matrix, axes: Axes, settings: dict[str, Any]) -> Cell:
    case = matrix.cases[axes.case]
    return Cell(
        axes=axes,
        target=matrix.located(case.target),
        drafter=matrix.located(matrix.families_of(axes.case)[axes.family]),
        prompts=matrix.located(case.prompts),
        max_new_tokens=case.max_new_tokens,
        golden=matrix.located(_golden(matrix, axes)),
        device=_device(matrix, axes),
        precision=matrix.policies[axes.policy].precision,
        bounds=matrix.bounds(axes.policy),
        **(matrix.run.said | case.said | settings),
    )


def _golden(matrix: Matrix, axes: Axes) -> str:
    """The golden of a case, which is of one K and one family."""
    named = matrix.cases[axes.case].golden
    several = {"{k}": len(matrix.k) > 1, "{family}": len(matrix.families_of(axes.case)) > 1}
    for part, needed in several.items():
        if named and needed and part not in named:
            raise UsageError(
                f"{matrix.path}: cases.{axes.case}.golden is one golden for several: say where {part} goes in {named!r}"
            )
    return named.replace("{k}", str(axes.k)).replace("{family}", axes.family)


def _device(matrix: Matrix, axes: Axes) -> str:
    spec = matrix.devices[axes.device]
    if any(option.startswith("tp=") for option in spec.split(",")[1:]):
        raise UsageError(f"{matrix.path}: devices.{axes.device}: tp is an axis of the matrix, no option of a device")
    return spec if axes.tp == 1 else f"{spec},tp={axes.tp}"
