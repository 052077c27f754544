"""Series of a table for a reader: one figure a line, its nights in a row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Figure:
    """One figure over all nights of a table; `values` has None for a night without it."""

    cell: str
    stage: str
    mode: str
    metric: str
    unit: str
    verdict: str
    bound: float | None
    values: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        """The values there are."""
        return [one for one in self.values if one is not None]


def figures(frame: pd.DataFrame) -> list[Figure]:
    """Each figure once, by cell, in dataflow order."""
    names = list(frame.drop_duplicates("night")["night"].astype(str))
    number = {name: place for place, name in enumerate(names)}
    found: dict[tuple, list] = {}
    last: dict[tuple, Any] = {}
    columns = ("night", "cell", "stage", "mode", "metric", "value", "unit", "verdict", "bound")
    for night, *key, value, unit, verdict, bound in zip(*(frame[name] for name in columns), strict=True):
        row = found.setdefault(tuple(key), [None] * len(names))
        row[number[night]] = None if math.isnan(value) else float(value)
        last[tuple(key)] = (unit, verdict, None if math.isnan(bound) else float(bound))
    order = sorted(found, key=lambda key: key[0])
    return [
        Figure(*map(str, key), str(last[key][0]), str(last[key][1]), last[key][2], tuple(found[key])) for key in order
    ]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as plain values; a missing number is None."""
    frame = frame.astype(object)
    return frame.where(frame.notna(), None).to_dict("records")
