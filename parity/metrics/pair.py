"""`measure`: every metric of a pair of float tensors in one streamed pass."""

from __future__ import annotations

from math import sqrt

import numpy as np

from parity.arrays import Array
from parity.metrics import moments as formulas
from parity.metrics import stream as streaming
from parity.metrics import sums as at
from parity.metrics.dtypes import unit_of
from parity.metrics.moments import Moments
from parity.metrics.record import Index, NonFinite, PairMetrics, RowSums, UlpDistances, WorstElement
from parity.metrics.sums import Partial


def measure(
    golden: Array,
    device: Array,
    *,
    row_axes: int | None = None,
    chunk: int = streaming.CHUNK,
    threads: int | None = None,
    engine: str = "auto",
    ulps: bool = False,
) -> PairMetrics:
    """All metrics of a device tensor against its golden, reading each side once.

    Args:
        golden: float16, bfloat16, float32 or float64 of any shape and strides; may be memory-mapped.
        device: the same shape; its dtype may differ.
        row_axes: how many of the first axes make up a row index; the others are averaged over. Default: all but
            the last, so that a row is one position.
        chunk: elements in flight per thread.
        threads: worker threads; default one per core.
        engine: `auto`, `numpy` or `fused`, see `parity.metrics.stream`.
        ulps: count ULP distances as well.

    Memory: a few chunks, and 64 bytes a row.

    Raises:
        ValueError: shapes differ, or have fewer axes than `row_axes`.
        TypeError: a dtype that is not one of the four; integers go to `measure_exact`.
    """
    golden, device = np.asanyarray(golden), np.asanyarray(device)
    if golden.shape != device.shape:
        raise ValueError(f"golden has shape {golden.shape}, device {device.shape}")
    leading = max(golden.ndim - 1, 0) if row_axes is None else row_axes
    if not 0 <= leading <= golden.ndim:
        raise ValueError(f"an array of {golden.ndim} axes has no {leading} row axes")
    unit = unit_of(golden.dtype, device.dtype)
    fold = streaming.kernel(golden.dtype, device.dtype, golden.size, engine)
    threads = threads or streaming.default_threads()
    total = streaming.stream(golden, device, leading, fold, unit if ulps else None, chunk, threads)
    counted = UlpDistances(unit.name, tuple(total.ulps.tolist()), int(total.counts[at.ULP_MAX])) if ulps else None
    return _metrics(golden, device, leading, total, counted)


def _metrics(golden: Array, device: Array, leading: int, total: Partial, ulps: UlpDistances | None) -> PairMetrics:
    """The metrics, from the sums."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = total.rows.sum(axis=0)
        moments = _moments(golden, device, leading, sums)
    rows = RowSums(golden.shape[:leading], total.rows)
    worst = _worst_element(golden, device, int(total.counts[at.WORST]))
    max_abs = worst.abs if worst else 0.0
    return PairMetrics(
        size=golden.size,
        count=moments.n,
        max_abs=max_abs,
        mean_abs=float(sums[at.AE]) / max(moments.n, 1),
        rel_l2=formulas.relative(sqrt(moments.error_sq), sqrt(moments.golden_sq), max_abs > 0),
        cosine_distance=formulas.cosine_distance(moments),
        golden_constant=moments.golden_constant,
        device_constant=moments.device_constant,
        worst_element=worst,
        nonfinite=_nonfinite(total.counts, golden.shape),
        rows=rows,
        ulps=ulps,
    )


def _moments(golden: Array, device: Array, leading: int, sums: Array) -> Moments:
    moments = Moments.of(sums)
    if not (moments.n and moments.doubtful):
        return moments
    tiles = (tile.index for tile in streaming.cut(golden.shape, leading, streaming.CHUNK))
    return moments.reread((golden[index], device[index]) for index in tiles)


def _index(flat: int, shape: tuple[int, ...]) -> Index:
    return tuple(np.array(np.unravel_index(flat, shape)).tolist())


def _worst_element(golden: Array, device: Array, flat: int) -> WorstElement | None:
    if flat < 0:
        return None
    index = _index(flat, golden.shape)
    g, d = float(golden[index]), float(device[index])
    return WorstElement(index, g, d, abs(d - g))


def _nonfinite(counts: Array, shape: tuple[int, ...]) -> NonFinite:
    first = _index(int(counts[at.FIRST]), shape) if counts[at.FIRST] >= 0 else None
    return NonFinite(
        golden_nan=int(counts[at.GOLDEN_NAN]),
        golden_inf=int(counts[at.GOLDEN_INF]),
        device_nan=int(counts[at.DEVICE_NAN]),
        device_inf=int(counts[at.DEVICE_INF]),
        mismatches=int(counts[at.MISMATCHES]),
        first=first,
    )
