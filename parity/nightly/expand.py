"""From a matrix to its cells: the product of the axes, thinned by `only` and `exclude`, then what `include` adds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, TypeVar

from parity import limits
from parity.errors import UsageError
from parity.gates.gate import SAMPLED
from parity.nightly.matrix import AxisPatterns, IncludeRow, NightMatrix
from parity.nightly.records import Cell, CellAxes

Value = TypeVar("Value", str, int)


def cells(matrix: NightMatrix) -> tuple[Cell, ...]:
    """Every cell, in the order of the axes.

    Raises:
        UsageError: a row matches nothing, a cell is there twice, or none is left.
    """
    sizes = (len(matrix.families_of(case)) for case in matrix.cases)
    _few(matrix, sum(sizes) * math.prod(map(len, (matrix.devices, matrix.k, matrix.tp, matrix.policies))))
    product = [axes for case in matrix.cases for axes in _product(matrix, case)]
    settings: dict[CellAxes, dict[str, Any]] = {axes: {} for axes in _thinned(matrix, product)}
    for number, row in enumerate(matrix.include):
        _include(matrix, row, f"include.{number}", settings)
        _few(matrix, len(settings))
    if not settings:
        raise UsageError(f"{matrix.path}: no cell is left")
    planned = [_cell(matrix, axes, own) for axes, own in settings.items()]
    lower = Counter(cell.name.lower() for cell in planned)
    if twice := [cell.name for cell in planned if lower[cell.name.lower()] > 1]:
        raise UsageError(f"{matrix.path}: {twice[0]} and {twice[1]} are one name where files know no case")
    return tuple(planned)


def _few(matrix: NightMatrix, count: int) -> None:
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


def _product(matrix: NightMatrix, case: str) -> Iterator[CellAxes]:
    counts = _once(matrix, "k", matrix.k), _once(matrix, "tp", matrix.tp)
    for device, family, k, tp, policy in product(matrix.devices, matrix.families_of(case), *counts, matrix.policies):
        yield CellAxes(case=case, device=device, family=family, k=k, tp=tp, policy=policy)


def _once(matrix: NightMatrix, axis: str, values: tuple[int, ...]) -> tuple[int, ...]:
    if twice := [value for value, count in Counter(values).items() if count > 1]:
        raise UsageError(f"{matrix.path}: {axis} names {twice[0]} twice: two cells with one name")
    return values


def _thinned(matrix: NightMatrix, planned: list[CellAxes]) -> list[CellAxes]:
    for number, row in enumerate(matrix.only):
        _matching(matrix, row, f"only.{number}", planned)
    if matrix.only:
        planned = [axes for axes in planned if any(_fits(row, axes) for row in matrix.only)]
    for number, row in enumerate(matrix.exclude):
        excluded = _matching(matrix, row, f"exclude.{number}", planned)
        planned = [axes for axes in planned if axes not in excluded]
    return planned


def _matching(matrix: NightMatrix, row: AxisPatterns, where: str, planned: Iterable[CellAxes]) -> list[CellAxes]:
    if not row.named:
        raise UsageError(f"{matrix.path}: {where} names no axis")
    matched = [axes for axes in planned if _fits(row, axes)]
    if not matched:
        raise UsageError(f"{matrix.path}: {where} matches no cell")
    return matched


def _fits(row: AxisPatterns, axes: CellAxes) -> bool:
    return all(
        any(_matches(getattr(axes, axis), pattern) for pattern in patterns) for axis, patterns in row.named.items()
    )


def _matches(value: str | int, pattern: str | int) -> bool:
    return fnmatchcase(value, str(pattern)) if isinstance(value, str) else value == pattern


def _include(matrix: NightMatrix, row: IncludeRow, where: str, settings: dict[CellAxes, dict[str, Any]]) -> None:
    """Settings for the cells it matches; where it matches none, the cells it names."""
    if not row.named:
        raise UsageError(f"{matrix.path}: {where} names no axis")
    matched = [axes for axes in settings if _fits(row, axes)]
    for axes in matched or _spelled_out(matrix, row, where):
        if axes in settings and not row.said:
            raise UsageError(f"{matrix.path}: {where}: {axes.name} is there already: two cells with one name")
        settings[axes] = settings.get(axes, {}) | row.said


def _spelled_out(matrix: NightMatrix, row: IncludeRow, where: str) -> Iterator[CellAxes]:
    """The cells an include spells out: known labels, and one value where the matrix has only one for an axis."""
    for case in _labels(matrix, row, where, "case", matrix.cases):
        devices = _labels(matrix, row, where, "device", matrix.devices)
        families = _labels(matrix, row, where, "family", matrix.families_of(case))
        ks, tps = _counts(matrix, row, where, "k", matrix.k), _counts(matrix, row, where, "tp", matrix.tp)
        policies = _labels(matrix, row, where, "policy", matrix.policies)
        _few(matrix, math.prod(map(len, (devices, families, ks, tps, policies))))
        for device, family, k, tp, policy in product(devices, families, ks, tps, policies):
            yield CellAxes(case=case, device=device, family=family, k=k, tp=tp, policy=policy)


def _labels(matrix: NightMatrix, row: IncludeRow, where: str, axis: str, known: Iterable[str]) -> tuple[str, ...]:
    labels, wanted = tuple(known), getattr(row, axis)
    if wanted is None:
        return _only(matrix, where, axis, labels)
    if unknown := [label for label in wanted if label not in labels]:
        raise UsageError(f"{matrix.path}: {where}: {axis} {unknown[0]!r} is none of {', '.join(labels)}")
    return tuple(wanted)


def _counts(matrix: NightMatrix, row: IncludeRow, where: str, axis: str, known: tuple[int, ...]) -> tuple[int, ...]:
    wanted = getattr(row, axis)
    return _only(matrix, where, axis, known) if wanted is None else tuple(wanted)


def _only(matrix: NightMatrix, where: str, axis: str, known: tuple[Value, ...]) -> tuple[Value, ...]:
    """The one value of an axis that an include does not name."""
    if len(known) != 1:
        raise UsageError(f"{matrix.path}: {where} matches no cell and adds none: it names no {axis}")
    return known


def _cell(matrix: NightMatrix, axes: CellAxes, settings: dict[str, Any]) -> Cell:
    case = matrix.cases[axes.case]
    if case.schedule and max(case.schedule) != axes.k:
        raise UsageError(
            f"{matrix.path}: {axes.name}: the largest K of cases.{axes.case}.schedule is {max(case.schedule)}, its "
            "cells have no other: keep them out with [[only]] or [[exclude]]"
        )
    said = _settings(matrix.run.said | case.said | settings)
    if case.sample:
        said = _drawn(matrix, axes, said)
    return Cell(
        axes=axes,
        target=matrix.located(case.target),
        drafter=matrix.located(matrix.families_of(axes.case)[axes.family]),
        prompts=matrix.located(case.prompts),
        max_new_tokens=case.max_new_tokens,
        golden=matrix.located(_golden(matrix, axes)),
        schedule=case.schedule,
        kv_cache=case.kv_cache,
        sample=case.sample,
        device=_device(matrix, axes),
        precision=matrix.policies[axes.policy].precision,
        bounds=matrix.bounds(axes.policy),
        **said,
    )


def _drawn(matrix: NightMatrix, axes: CellAxes, said: dict[str, Any]) -> dict[str, Any]:
    """A cell whose tokens are drawn: its golden is for few gates, and is not diagnosed."""
    others = [gate for gate in said.get("gates", matrix.run.gates) if gate not in SAMPLED]
    if others or said.get("kind") == "bench":
        what = f"gate {others[0]}" if others else 'kind = "bench"'
        raise UsageError(
            f"{matrix.path}: {axes.name} samples, and {what} is of greedy decoding: its case, or an include, names "
            f"gates of {', '.join(SAMPLED)} alone"
        )
    return said | {"diagnose": False, "speed_tokens": 0}


def _settings(said: dict[str, Any]) -> dict[str, Any]:
    """A bench is neither gated nor diagnosed."""
    return said | {"gates": (), "diagnose": False, "speed_tokens": 0} if said.get("kind") == "bench" else said


def _golden(matrix: NightMatrix, axes: CellAxes) -> str:
    """The golden of a case, which is of one K and one family."""
    named = matrix.cases[axes.case].golden
    several = {"{k}": len(matrix.k) > 1, "{family}": len(matrix.families_of(axes.case)) > 1}
    for part, needed in several.items():
        if named and needed and part not in named:
            raise UsageError(
                f"{matrix.path}: cases.{axes.case}.golden is one golden for several: say where {part} goes in {named!r}"
            )
    return named.replace("{k}", str(axes.k)).replace("{family}", axes.family)


def _device(matrix: NightMatrix, axes: CellAxes) -> str:
    spec = matrix.devices[axes.device]
    if any(option.startswith("tp=") for option in spec.split(",")[1:]):
        raise UsageError(f"{matrix.path}: devices.{axes.device}: tp is an axis of the matrix, no option of a device")
    return spec if axes.tp == 1 else f"{spec},tp={axes.tp}"
