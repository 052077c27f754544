"""What stands around a heat map: ticks, the lines at positions that mean something, and the figures to point at."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from parity.nightly.records import HeatMap, Landmarks
from parity.reports.page.figures import figure
from parity.reports.page.plots import round_steps

TICKS, SIDES = 5, 8
"""Labels at the most, to the right and downward; a label is as high as two layers."""


def place(positions: Sequence[int], position: int) -> float | None:
    """Percent of the width at which a position begins; None for one that the map does not reach."""
    if not positions or not positions[0] <= position <= _end(positions):
        return None
    column = bisect_right(positions, position) - 1
    behind = positions[column + 1] if column + 1 < len(positions) else _end(positions)
    share = (position - positions[column]) / max(behind - positions[column], 1)
    return round(100 * (column + share) / len(positions), 2)


def _end(positions: Sequence[int]) -> int:
    """The position behind the last column, which is as wide as the one before it."""
    return positions[-1] + (positions[-1] - positions[-2] if len(positions) > 1 else 1)


def ticks(positions: Sequence[int]) -> tuple[tuple[float, str], ...]:
    """Round positions."""
    if not positions:
        return ()
    steps = {int(step) for step in round_steps(positions[0], _end(positions), TICKS) if step == int(step)}
    found = ((place(positions, step), str(step)) for step in sorted(steps))
    return tuple((percent, label) for percent, label in found if percent is not None and percent <= 96)


def sides(layers: Sequence[str]) -> tuple[tuple[float, str], ...]:
    """Every layer, or every n-th of many; none for a stage without layers."""
    step = max(-(-len(layers) // SIDES), min(len(layers), 2))
    return tuple(
        (round(100 * (row + 0.5) / len(layers), 1), label)
        for row, label in enumerate(layers)
        if label and not row % step
    )


def marks(positions: Sequence[int], landmarks: Landmarks, bad: int | None) -> tuple[tuple[str, float], ...]:
    """Class and percent of the lines: window, the first and last prompt's end, first bad position."""
    ends = landmarks.prompt_ends
    wanted = [
        ("window", landmarks.window),
        *(("end", end) for end in dict.fromkeys(ends[:1] + ends[-1:])),
        ("bad", bad),
    ]
    found = ((kind, None if position is None else place(positions, position)) for kind, position in wanted)
    return tuple((kind, percent) for kind, percent in found if percent is not None)


def first_bad(stages: Sequence[Mapping[str, Any]]) -> int | None:
    """The least position at which one of these stages has its first bad row."""
    places = [stage["first"]["position"] for stage in stages if stage["bad_rows"] and stage["first"]]
    return min((position for position in places if position is not None), default=None)


def values(heat_map: HeatMap, layers: Sequence[str]) -> str:
    """Layers, positions and errors as one attribute, which the page's script reads; no row is an empty figure."""
    errors = ";".join(",".join("" if one is None else figure(one) for one in row) for row in heat_map.x)
    return "|".join((",".join(layers), ",".join(map(str, heat_map.positions)), errors))
