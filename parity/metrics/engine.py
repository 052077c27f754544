"""Which kernel runs, and streaming a pair through it tile by tile on a few threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec

import numpy as np

from parity.metrics import plain
from parity.metrics.partial import Partial
from parity.metrics.tiles import Tile

CHUNK = 1 << 20
"""Elements in a tile: enough to make a task worth a thread, at most 32 MiB of float64 temporaries in NumPy."""

WARM_UP = 1 << 22
"""Elements a process measures with NumPy before it pays for loading numba."""

Fold = Callable[[np.ndarray, np.ndarray, np.dtype], Partial]
_measured = 0


def kernel(golden: np.dtype, device: np.dtype, size: int, engine: str) -> Fold:
    """The pass to use for a pair of `size` elements.

    Args:
        golden: dtype of that side.
        device: dtype of that side.
        size: elements of the pair.
        engine: `numpy`, `fused`, or `auto`: fused where it supports the dtypes and this process has
            enough to measure to repay loading it.

    Raises:
        ValueError: another engine, or `fused` for dtypes it does not know.
        ImportError: `fused` without numba.
    """
    global _measured
    if engine not in ("auto", "numpy", "fused"):
        raise ValueError(f"engine {engine!r} is none of auto, numpy, fused")
    if engine == "auto":
        _measured += size
        if _measured < WARM_UP or not find_spec_once("numba"):
            return plain.fold
    if engine == "numpy":
        return plain.fold
    from parity.metrics import fused

    if fused.supports(golden, device):
        return fused.fold
    if engine == "fused":
        raise ValueError(f"the fused pass does not take {golden} against {device}")
    return plain.fold


@cache
def find_spec_once(module: str) -> bool:
    """Whether `module` is installed."""
    return find_spec(module) is not None


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Worker threads; the kernels release the GIL."""
    return ThreadPoolExecutor(threads, thread_name_prefix="parity-metrics")


def default_threads() -> int:
    """One per usable core, at most four: the pass is bound by memory, not by arithmetic."""
    return min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def each(work: Callable[[Tile], Partial], tiles: Iterable[Tile], threads: int) -> Iterator[tuple[Tile, Partial]]:
    """Tiles with their partial sums, in order, whatever the number of threads."""
    tiles = list(tiles)
    if threads <= 1 or len(tiles) <= 1:
        yield from ((tile, work(tile)) for tile in tiles)
        return
    yield from zip(tiles, pool(threads).map(work, tiles))
