"""Cutting a pair into tiles of bounded size, whatever its shape and strides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np


class Tile(NamedTuple):
    """One tile: `index` into the arranged pair, its first row and column, and its shape."""

    index: tuple[slice, ...]
    row: int
    column: int
    shape: tuple[int, int]


def row_axes(ndim: int, rows: int | Sequence[int] | None) -> tuple[int, ...]:
    """The axes that make up a row index: all but the last, or those named.

    Raises:
        ValueError: an axis is out of range or named twice.
    """
    if rows is None:
        return tuple(range(ndim - 1))
    named = [rows] if isinstance(rows, int) else list(rows)
    axes = tuple(axis + ndim if axis < 0 else axis for axis in named)
    if len(set(axes)) != len(axes) or not all(0 <= axis < ndim for axis in axes):
        raise ValueError(f"row axes {rows} do not fit an array of {ndim} axes")
    return axes


def arrange(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """A view of `array` with the row axes in front; nothing is copied."""
    return np.moveaxis(array, axes, range(len(axes)))


def flattened(array: np.ndarray, rows: int) -> np.ndarray | None:
    """`array` as a [R, C] view, or None where its strides need a copy."""
    try:
        return np.reshape(array, (rows, array.size // max(rows, 1)), copy=False)
    except ValueError:
        return None


def cut(shape: tuple[int, ...], leading: int, chunk: int) -> Iterator[Tile]:
    """Tiles of at most `chunk` elements that cover `shape` in C order.

    Args:
        shape: of the arranged pair; the first `leading` axes are rows, the others columns.
        leading: number of row axes.
        chunk: largest number of elements in a tile; at least one.
    """
    yield from _cut(shape, leading, max(chunk, 1), (), 0, 0)


def _cut(shape, leading, chunk, index, row, column) -> Iterator[Tile]:
    depth = len(index)
    if prod(shape[depth:]) <= chunk:
        rows = prod(shape[depth:leading])
        columns = prod(shape[max(depth, leading) :])
        yield Tile((*index, *map(slice, shape[depth:])), row, column, (rows, columns))
        return
    inner = prod(shape[depth + 1 :])
    step = max(1, chunk // inner)
    per_row = prod(shape[depth + 1 : leading]) if depth < leading else 0
    per_column = 0 if depth < leading else inner
    for at in range(0, shape[depth], step):
        part = slice(at, min(at + step, shape[depth]))
        start = (*index, part), row + at * per_row, column + at * per_column
        if inner > chunk:
            yield from _cut(shape, leading, chunk, *start)
        else:
            yield _tile(shape, leading, *start)


def _tile(shape, leading, index, row, column) -> Tile:
    last = index[-1].stop - index[-1].start
    depth = len(index)
    rows = prod(shape[depth:leading]) * (last if depth <= leading else 1)
    columns = prod(shape[max(depth, leading) :]) * (last if depth > leading else 1)
    return Tile((*index, *map(slice, shape[depth:])), row, column, (rows, columns))
