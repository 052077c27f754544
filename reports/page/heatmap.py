"""Heat maps drawn small: one path a colour level, so that a cell's fifty maps stay light."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from parity.compare.report import NOT_JUDGED, join
from parity.nightly.records import CellResult, HeatMap, Landmarks
from parity.reports.page import axes
from parity.reports.page.figures import figure, level


@dataclass(frozen=True)
class LayerLine:
    """One layer in figures, for a table."""

    family: str
    layer: str
    middle: str
    largest: str
    position: str


@dataclass(frozen=True)
class MapPicture:
    """One map, ready to draw: `paths` are (class, path data) on a grid of `columns` x `rows`.

    Args:
        marks: (class, percent of the width) of the lines at window, prompt ends and first bad position.
        ticks: (percent of the width, position); `sides`: (percent of the height, layer).
        values: what a pointer reads: layers, first positions and errors, by `|`, `;` and `,`.
    """

    family: str
    verdict: str
    unit: str
    columns: int
    rows: int
    marks: tuple[tuple[str, float], ...]
    ticks: tuple[tuple[float, str], ...]
    sides: tuple[tuple[float, str], ...]
    values: str
    paths: tuple[tuple[str, str], ...]
    lines: tuple[LayerLine, ...]
    says: str


def pictures(result: CellResult, mode: str) -> list[MapPicture]:
    """Every map of a mode, in dataflow order, with the verdict of its stages."""
    stages: dict[str, list[Mapping[str, Any]]] = {}
    for stage in result.stages.get(mode, ()):
        stages.setdefault(stage["family"], []).append(stage)
    maps = (heat_map for heat_map in result.heat if heat_map.mode == mode)
    return [_picture(heat_map, stages.get(heat_map.family, []), result.landmarks) for heat_map in maps]


def _picture(heat_map: HeatMap, stages: Sequence[Mapping[str, Any]], landmarks: Landmarks) -> MapPicture:
    verdict = join([stage["verdict"] for stage in stages] or [NOT_JUDGED])
    layers = tuple("" if layer is None else str(layer) for layer in heat_map.layers)
    paths: dict[str, str] = {}
    for row, values in enumerate(heat_map.x):
        for shade, start, width in _runs(values, heat_map.unit):
            paths[shade] = paths.get(shade, "") + f"M{start} {row}h{width}v1h-{width}z"
    lines = tuple(_line(heat_map, row) for row in range(len(layers)))
    return MapPicture(
        family=heat_map.family,
        verdict=verdict,
        unit=heat_map.unit,
        columns=max(len(heat_map.positions), 1),
        rows=max(len(layers), 1),
        marks=axes.marks(heat_map.positions, landmarks, axes.first_bad(stages)),
        ticks=axes.ticks(heat_map.positions),
        sides=axes.sides(layers),
        values=axes.values(heat_map, layers),
        paths=tuple(sorted(paths.items())),
        lines=lines,
        says=_says(heat_map, verdict),
    )


def _runs(values: Sequence[float | None], unit: str) -> Iterator[tuple[str, int, int]]:
    """Neighbouring positions of one colour: class, first column, width. Positions without a row stay empty."""
    shades = ((number, None if value is None else level(value, unit)) for number, value in enumerate(values))
    for shade, group in groupby(shades, key=lambda shaded: shaded[1]):
        columns = [number for number, _ in group]
        if shade is not None:
            yield shade, columns[0], len(columns)


def _line(heat_map: HeatMap, row: int) -> LayerLine:
    errors = [
        (value, position)
        for value, position in zip(heat_map.x[row], heat_map.positions, strict=True)
        if value is not None
    ]
    layer = "" if heat_map.layers[row] is None else str(heat_map.layers[row])
    if not errors:
        return LayerLine(heat_map.family, layer, "no row", "", "")
    largest, position = max(errors, key=lambda pair: pair[0])
    return LayerLine(
        heat_map.family, layer, figure(median(value for value, _ in errors)), figure(largest), str(position)
    )


def _says(heat_map: HeatMap, verdict: str) -> str:
    """The map in a sentence, for those who do not see it."""
    cells = {
        (row, column): value
        for row, values in enumerate(heat_map.x)
        for column, value in enumerate(values)
        if value is not None
    }
    if not cells:
        return f"{heat_map.family}: no rows"
    row, column = max(cells, key=cells.__getitem__)
    layer = "" if heat_map.layers[row] is None else f" in layer {heat_map.layers[row]}"
    largest = f"{figure(cells[row, column])} {heat_map.unit}{layer}"
    return f"{heat_map.family}, {verdict}: largest {largest} from position {heat_map.positions[column]}"


def units(maps: Mapping[str, Sequence[MapPicture]]) -> list[str]:
    """The units that occur, each once."""
    return list(dict.fromkeys(picture.unit for pictures in maps.values() for picture in pictures))


def told(landmarks: Landmarks) -> Iterator[tuple[str, str]]:
    """The lines that every map of a cell has: class and words."""
    if landmarks.window is not None:
        yield "window", f"sliding window, {landmarks.window}"
    if ends := landmarks.prompt_ends:
        yield "end", f"prompts end at {ends[0]}" + (f" to {ends[-1]}" if len(ends) > 1 else "")
