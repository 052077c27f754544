"""Changes of the parts that a product adds up: of all of them, or of those in which the error lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parity.diagnose.components.wrong import Component, WrongRows

Parts = Sequence[tuple[str, int, int]]
"""(name, first column, behind the last) of runs of a product's input columns."""

INSIDE = 0.7
"""Directions of a row that one part may span: beyond it nearly any error lies within."""


def in_all_or_some(
    wrong: WrongRows, says: str, model: np.ndarray, made: Sequence[tuple[str, np.ndarray]]
) -> Component | None:
    """A change of all parts, or where that leaves something of some of them."""
    whole = wrong.judged(f"{wrong.where}{says}", model, 0)
    return whole if whole and whole.whole else in_some(wrong, says, made) or whole


def in_some(wrong: WrongRows, says: str, made: Sequence[tuple[str, np.ndarray]]) -> Component | None:
    """A change of some parts only: those that a fit takes as they are rather than not at all."""
    error, made = wrong.error[:, wrong.columns], [(name, part) for name, part in made if part.any()]
    if not made:
        return None
    table = np.stack([part.ravel() for _, part in made])
    factors = np.linalg.lstsq(table @ table.T, table @ error.ravel(), rcond=None)[0]
    those = [(name, part) for (name, part), factor in zip(made, factors, strict=True) if factor > 0.5]
    if not those:
        return None
    named = "" if says and len(those) == len(made) else ", ".join(name for name, _ in those)
    told = f"{says} ({named})" if says and named else says or named
    model = np.sum([part for _, part in those], axis=0)
    found = wrong.judged(f"{wrong.where}{told}", model, len(made))
    return found and replace(found, numbers=len(those))


TILE, TILES = 32, 16
"""Inputs of a tile in which alone something may be done otherwise, and how many are looked at."""


def tiles_of(width: int) -> Parts:
    """Tiles of so many inputs that have no parts; none where they are one tile or many."""
    firsts = range(0, width, TILE)
    if not 1 < len(firsts) <= TILES:
        return ()
    return [(f"inputs {first} to {min(first + TILE, width) - 1}", first, min(first + TILE, width)) for first in firsts]


def wide_parts(parts: Parts, width: int) -> list[tuple[str, int, int]]:
    """The parts of more than one column; all columns that are no part's as one where none is."""
    wide = [part for part in parts if part[2] - part[1] > 1]
    end = min((first for _, first, _ in parts), default=width)
    return wide or [("", 0, end)]
