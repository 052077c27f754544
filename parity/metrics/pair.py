"""`measure`: every metric of a pair of float tensors in one streamed pass."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import numpy as np

from parity.metrics import engine as engines
from parity.metrics import formulas, plain
from parity.metrics import partial as p
from parity.metrics.dtypes import unit_of
from parity.metrics.formulas import Moments
from parity.metrics.partial import Partial
from parity.metrics.record import NonFinite, PairMetrics, Rows, WorstElement, WorstRow
from parity.metrics.reread import centred
from parity.metrics.tiles import Tile, arrange, cut, flattened, row_axes


def measure(
    golden: np.ndarray,
    device: np.ndarray,
    *,
    rows: int | Sequence[int] | None = None,
    chunk: int = engines.CHUNK,
    threads: int | None = None,
    engine: str = "auto",
    ulps: bool = True,
) -> PairMetrics:
    """All metrics of a device tensor against its golden, reading each side once.

    Args:
        golden: float16, bfloat16, float32 or float64 of any shape and strides; may be memory-mapped.
        device: the same shape; its dtype may differ.
        rows: axis or axes that make up a row index; the others are averaged over. Default: all but the
            last, so that a row is one position.
        chunk: elements in flight per thread.
        threads: worker threads; default one per core.
        engine: `auto`, `numpy` or `fused`, see `parity.metrics.engine`.
        ulps: count ULP distances and signed zeros as well; without, they are empty and -1.

    Memory: a few chunks, and 64 bytes a row.

    Raises:
        ValueError: shapes differ, or `rows` does not fit them.
        TypeError: a dtype that is not one of the four; integers go to `measure_exact`.
    """
    golden, device = np.asanyarray(golden), np.asanyarray(device)
    if golden.shape != device.shape:
        raise ValueError(f"golden has shape {golden.shape}, device {device.shape}")
    pair = _Pair(golden, device, row_axes(golden.ndim, rows))
    fold = engines.kernel(golden.dtype, device.dtype, golden.size, engine)
    total = pair.stream(fold, chunk, threads or engines.default_threads(), ulps)
    return pair.finish(total, ulps)


class _Pair:
    """Two arrays of one shape, arranged as rows and columns."""

    def __init__(self, golden: np.ndarray, device: np.ndarray, axes: tuple[int, ...]) -> None:
        self.unit = unit_of(golden.dtype, device.dtype)
        self.axes = axes
        self.golden, self.device = arrange(golden, axes), arrange(device, axes)
        self.shape = self.golden.shape
        self.row_shape = self.shape[: len(axes)]
        self.rows, self.columns = prod(self.row_shape), prod(self.shape[len(axes) :])

    def stream(self, fold: engines.Fold, chunk: int, threads: int, ulps: bool) -> Partial:
        """The sums of the whole pair."""
        golden, device = flattened(self.golden, self.rows), flattened(self.device, self.rows)
        leading, shape = 1, (self.rows, self.columns)
        if golden is None or device is None:
            golden, device, leading, shape = self.golden, self.device, len(self.axes), self.shape

        unit = self.unit if ulps or fold is not plain.fold else None

        def work(tile: Tile) -> Partial:
            sides = (np.ascontiguousarray(side[tile.index]).reshape(tile.shape) for side in (golden, device))
            return fold(*sides, unit)

        total = Partial.empty(self.rows)
        if self.golden.size:
            for tile, part in engines.each(work, cut(shape, leading, chunk), threads):
                total.add(part, tile.row, tile.column, self.columns)
        return total

    def finish(self, total: Partial, ulps: bool) -> PairMetrics:
        """The metrics, from the sums."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = total.rows.sum(axis=0)
            moments = self._moments(sums)
        n = moments.n
        rows = Rows(self.axes, self.row_shape, total.rows)
        worst = self._worst_element(total)
        max_abs = worst.abs if worst else 0.0
        rel_l2 = formulas.relative(sqrt(moments.error_sq), sqrt(moments.golden_sq), max_abs > 0)
        scale_error, bias = formulas.fit(moments)
        return PairMetrics(
            size=self.golden.size,
            count=n,
            max_abs=max_abs,
            mean_abs=float(sums[p.AE]) / max(n, 1),
            rmse=sqrt(moments.error_sq / max(n, 1)),
            rel_l2=rel_l2,
            cosine_distance=formulas.cosine_distance(moments),
            sqnr_db=formulas.sqnr_db(rel_l2),
            scale_error=scale_error,
            bias=bias,
            golden_constant=moments.golden_constant,
            device_constant=moments.device_constant,
            signed_zeros=int(total.counts[p.ZEROS]) if ulps else -1,
            ulp_unit=self.unit.name,
            ulp_histogram=tuple(total.ulps.tolist()) if ulps else (),
            ulp_max=int(total.counts[p.ULP_MAX]) if ulps else -1,
            worst_element=worst,
            worst_row=self._worst_row(rows) if n else None,
            nonfinite=self._nonfinite(total.counts),
            rows=rows,
        )

    def _moments(self, sums: np.ndarray) -> Moments:
        moments = Moments.of(sums)
        if not (moments.n and moments.doubtful):
            return moments
        tiles = (tile.index for tile in cut(self.shape, len(self.axes), engines.CHUNK))
        return centred(moments, ((self.golden[index], self.device[index]) for index in tiles))

    def _index(self, flat: int) -> tuple[int, ...]:
        """Index in the axes of the arrays, from the flat index of the arranged pair."""
        arranged = [int(i) for i in np.unravel_index(flat, self.shape)]
        rest = [axis for axis in range(len(self.shape)) if axis not in self.axes]
        back = dict(zip((*self.axes, *rest), arranged))
        return tuple(back[axis] for axis in range(len(self.shape)))

    def _worst_element(self, total: Partial) -> WorstElement | None:
        if total.counts[p.WORST] < 0:
            return None
        where = np.unravel_index(total.counts[p.WORST], self.shape)
        g, d = float(self.golden[where]), float(self.device[where])
        return WorstElement(self._index(total.counts[p.WORST]), g, d, abs(d - g))

    def _worst_row(self, rows: Rows) -> WorstRow:
        flat = int(rows.rel_l2.argmax())
        index = tuple(int(i) for i in np.unravel_index(flat, self.row_shape)) if self.row_shape else ()
        return WorstRow(index, float(rows.rel_l2.flat[flat]))

    def _nonfinite(self, counts: np.ndarray) -> NonFinite:
        first = self._index(counts[p.FIRST]) if counts[p.FIRST] >= 0 else None
        return NonFinite(*(int(counts[i]) for i in range(p.MISMATCHES + 1)), first)
