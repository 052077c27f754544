"""Streaming a pair through a kernel: which one runs, the tiles of bounded size, a few threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from parity.arrays import Array, DType
from parity.metrics import sums
from parity.metrics.sums import Partial

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

CHUNK = 1 << 20
"""Elements in a tile: enough to make a task worth a thread, at most 32 MiB of float64 temporaries in NumPy."""

WARM_UP = 1 << 22
"""Elements a process measures with NumPy before it pays for loading numba: about where the two cost the same."""

Fold = Callable[[Array, Array, DType | None], Partial]
_measured = 0


def kernel(golden: DType, device: DType, size: int, engine: str) -> Fold:
    """The pass to use for a pair of `size` elements.

    Args:
        golden: dtype of that side.
        device: dtype of that side.
        size: elements of the pair.
        engine: `numpy`, `fused`, or `auto`: fused where it supports the dtypes and this process has
            enough to measure to repay loading it.

    Raises:
        ValueError: another engine, or `fused` for dtypes it does not know.
        ImportError, RuntimeError: `fused` without numba, or without a folder for its cache.
    """
    global _measured
    if engine not in ("auto", "numpy", "fused"):
        raise ValueError(f"engine {engine!r} is none of auto, numpy, fused")
    if engine == "auto":
        _measured += size
    if engine == "numpy" or (engine == "auto" and (_measured < WARM_UP or not compiles())):
        return sums.fold
    from parity.metrics import fused

    if fused.supports(golden, device):
        return fused.fold
    if engine == "fused":
        raise ValueError(f"the fused pass does not take {golden} against {device}")
    return sums.fold


@cache
def compiles() -> bool:
    """Whether numba is there, and finds a place for its cache."""
    try:
        import parity.metrics.fused  # noqa: F401 (importing is the test)
    except (ImportError, RuntimeError):
        return False
    return True


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Worker threads; the kernels release the GIL."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads, thread_name_prefix="parity-metrics")


def default_threads() -> int:
    """One per usable core, at most four: the pass is bound by memory, not by arithmetic."""
    return min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@dataclass(frozen=True)
class Tile:
    """One tile: `index` into the pair, its first row and column, and its shape."""

    index: tuple[slice, ...]
    row: int
    column: int
    shape: tuple[int, int]


def stream(
    golden: Array, device: Array, leading: int, fold: Fold, unit: DType | None, chunk: int, threads: int
) -> Partial:
    """The sums of a whole pair; its first `leading` axes are rows, the others columns."""
    shape = golden.shape
    rows, columns = prod(shape[:leading]), prod(shape[leading:])
    if not golden.size:
        return Partial.empty(rows)
    flat_golden, flat_device = _flattened(golden, rows), _flattened(device, rows)
    if flat_golden is not None and flat_device is not None:
        golden, device, leading, shape = flat_golden, flat_device, 1, (rows, columns)

    total = Partial.empty(rows)

    def work(tile: Tile) -> Partial:
        g, d = (np.ascontiguousarray(side[tile.index]).reshape(tile.shape) for side in (golden, device))
        return fold(g, d, unit)

    if golden.size <= chunk:
        return work(Tile((), 0, 0, (rows, columns)))
    for tile, part in _each(work, cut(shape, leading, chunk), threads):
        total.add(part, tile.row, tile.column, columns)
    return total


def _each(work: Callable[[Tile], Partial], tiles: Iterable[Tile], threads: int) -> Iterator[tuple[Tile, Partial]]:
    """Tiles with their partial sums, in order, whatever the number of threads."""
    tiles = list(tiles)
    alone = threads <= 1 or len(tiles) <= 1
    yield from zip(tiles, map(work, tiles) if alone else pool(threads).map(work, tiles), strict=True)


def _flattened(array: Array, rows: int) -> Array | None:
    """`array` as a [R, C] view, or None where its strides need a copy."""
    try:
        return np.reshape(array, (rows, array.size // max(rows, 1)), copy=False)
    except ValueError:
        return None


def cut(shape: tuple[int, ...], leading: int, chunk: int) -> Iterator[Tile]:
    """Tiles of at most `chunk` elements that cover `shape` in C order.

    Args:
        shape: of the pair; the first `leading` axes are rows, the others columns.
        leading: number of row axes.
        chunk: largest number of elements in a tile; at least one.
    """
    yield from _cut(shape, leading, max(chunk, 1), (), 0, 0)


def _cut(
    shape: tuple[int, ...], leading: int, chunk: int, index: tuple[slice, ...], row: int, column: int
) -> Iterator[Tile]:
    """The tiles of one `index` into the first axes, whose first element is (`row`, `column`)."""
    depth = len(index)
    if prod(shape[depth:]) <= chunk:
        yield _tile(shape, leading, index, row, column)
        return
    inner = prod(shape[depth + 1 :])
    step = max(1, chunk // inner)
    per_row = prod(shape[depth + 1 : leading]) if depth < leading else 0
    per_column = 0 if depth < leading else inner
    for start in range(0, shape[depth], step):
        part = slice(start, min(start + step, shape[depth]))
        place = (*index, part), row + start * per_row, column + start * per_column
        yield from _cut(shape, leading, chunk, *place) if inner > chunk else (_tile(shape, leading, *place),)


def _tile(shape: tuple[int, ...], leading: int, index: tuple[slice, ...], row: int, column: int) -> Tile:
    """The tile of an `index` of which only the last part may be longer than one."""
    depth = len(index)
    last = index[-1].stop - index[-1].start if index else 1
    rows = prod(shape[depth:leading]) * (last if depth <= leading else 1)
    columns = prod(shape[max(depth, leading) :]) * (last if depth > leading else 1)
    return Tile((*index, *map(slice, shape[depth:])), row, column, (rows, columns))
