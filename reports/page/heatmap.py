"""Heat maps drawn small: one path a colour level, so that a cell's fifty maps stay light."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from parity.compare.report import NOT_JUDGED, join
from parity.nightly.records import CellResult, HeatMap
from parity.reports.page.figures import figure, level


@dataclass(frozen=True)
class Line:
    """One layer in figures, for a table."""

    family: str
    layer: str
    middle: str
    largest: str
    position: str


@dataclass(frozen=True)
class Picture:
    """One map, ready to draw: `paths` are (class, path data) on a grid of `columns` x `rows`."""

    family: str
    verdict: str
    unit: str
    columns: int
    rows: int
    layers: tuple[str, ...]
    positions: str
    paths: tuple[tuple[str, str], ...]
    lines: tuple[Line, ...]
    says: str


def pictures(result: CellResult, mode: str) -> list[Picture]:
    """Every map of a mode, in dataflow order, with the verdict of its stages."""
    verdicts: dict[str, list[str]] = {}
    for stage in result.stages.get(mode, ()):
        verdicts.setdefault(stage["family"], []).append(stage["verdict"])
    return [_picture(one, join(verdicts.get(one.family, [NOT_JUDGED]))) for one in result.heat if one.mode == mode]


def _picture(one: HeatMap, verdict: str) -> Picture:
    layers = tuple("" if layer is None else str(layer) for layer in one.layers)
    paths: dict[str, str] = {}
    for row, values in enumerate(one.x):
        for shade, start, width in _runs(values, one.unit):
            paths[shade] = paths.get(shade, "") + f"M{start} {row}h{width}v1h-{width}z"
    lines = tuple(_line(one, row) for row in range(len(layers)))
    return Picture(
        family=one.family,
        verdict=verdict,
        unit=one.unit,
        columns=max(len(one.positions), 1),
        rows=max(len(layers), 1),
        layers=layers,
        positions=f"{one.positions[0]} to {one.positions[-1]}" if one.positions else "none",
        paths=tuple(sorted(paths.items())),
        lines=lines,
        says=_says(one, verdict),
    )


def _runs(values: Sequence[float | None], unit: str) -> Iterator[tuple[str, int, int]]:
    """Neighbouring positions of one colour: class, first column, width. Positions without a row stay empty."""
    shades = ((number, None if value is None else level(value, unit)) for number, value in enumerate(values))
    for shade, group in groupby(shades, key=lambda one: one[1]):
        columns = [number for number, _ in group]
        if shade is not None:
            yield shade, columns[0], len(columns)


def _line(one: HeatMap, row: int) -> Line:
    found = [(value, position) for value, position in zip(one.x[row], one.positions, strict=True) if value is not None]
    layer = "" if one.layers[row] is None else str(one.layers[row])
    if not found:
        return Line(one.family, layer, "no row", "", "")
    largest, position = max(found, key=lambda pair: pair[0])
    return Line(one.family, layer, figure(median(value for value, _ in found)), figure(largest), str(position))


def _says(one: HeatMap, verdict: str) -> str:
    """The map in a sentence, for those who do not see it."""
    cells = {
        (row, column): value
        for row, values in enumerate(one.x)
        for column, value in enumerate(values)
        if value is not None
    }
    if not cells:
        return f"{one.family}: no rows"
    row, column = max(cells, key=cells.__getitem__)
    layer = "" if one.layers[row] is None else f" in layer {one.layers[row]}"
    return f"{one.family}, {verdict}: largest {figure(cells[row, column])} {one.unit}{layer} from position {one.positions[column]}"


def units(found: Mapping[str, Sequence[Picture]]) -> list[str]:
    """The units that occur, each once."""
    return list(dict.fromkeys(one.unit for pictures in found.values() for one in pictures))
