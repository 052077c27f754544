"""Operands of a multiplication in pieces that fit memory, and its errors against float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from parity.seam import Gemm

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32)}
ROW_SCALES = (1.0, 2.0**17, 2.0**-10, 2.0**5)
"""Rows in turn: as they are; beyond float16's 65504, where a narrow accumulator saturates; small; and residual-like."""
COLUMN_SCALES = (1.0, 2.0**17, 2.0**-7)
"""Columns in turn, so that a product of one row has large and small results too. Powers of two are exact to undo."""
_ALPHABET = 65536


@dataclass(frozen=True)
class GemmPiece:
    """A part of a multiplication that runs at once.

    Args:
        number: of this piece.
        batch, columns: what of the batch and of N.
        left: [M, K] or [batch or 1, M, K].
        right: [K, N] or [batch, K, N].
    """

    number: int
    batch: slice
    columns: slice
    left: np.ndarray
    right: np.ndarray

    @property
    def row_scale(self) -> np.ndarray:
        """Float64 [M, 1]: what each row was multiplied by."""
        return _cycle(ROW_SCALES, 0, self.left.shape[-2])[:, None]

    @property
    def column_scale(self) -> np.ndarray:
        """Float64 [N of the piece]."""
        return _cycle(COLUMN_SCALES, self.columns.start, self.columns.stop)


def piece_slices(gemm: Gemm, limit: int) -> list[tuple[slice, slice]]:
    """Batch and columns of each piece; no operand or result of one is larger than `limit` elements, if that can be.

    The batch is cut first: its members share nothing. K is never cut.
    """
    size = max(gemm.m, gemm.k) * gemm.n
    if size <= limit:
        together = max(1, limit // size)
        return [(slice(at, min(at + together, gemm.batch)), slice(0, gemm.n)) for at in range(0, gemm.batch, together)]
    width = max(1, limit // max(gemm.m, gemm.k))
    columns = [slice(at, min(at + width, gemm.n)) for at in range(0, gemm.n, width)]
    return [(slice(number, number + 1), part) for number in range(gemm.batch) for part in columns]


def pieces(gemm: Gemm, seed: int, limit: int) -> Iterator[GemmPiece]:
    """The operands, piece by piece: normal values, results near 1 before the scales."""
    key, dtype = [seed, gemm.batch, gemm.m, gemm.k, gemm.n], DTYPES[gemm.values]
    lefts = 1 if gemm.shared or gemm.batch == 1 else gemm.batch
    draw = np.random.default_rng(key)
    left = _normal(draw, (lefts, gemm.m, gemm.k), dtype, 1.0)
    left *= _cycle(ROW_SCALES, 0, gemm.m)[:, None].astype(dtype)
    for number, (batch, columns) in enumerate(piece_slices(gemm, limit)):
        draw, width = np.random.default_rng([*key, number]), columns.stop - columns.start
        right = _normal(draw, (batch.stop - batch.start, gemm.k, width), dtype, gemm.k**-0.5)
        right *= _cycle(COLUMN_SCALES, columns.start, columns.stop).astype(dtype)
        mine = left if lefts == 1 else left[batch]
        yield GemmPiece(number, batch, columns, *((mine[0], right[0]) if gemm.batch == 1 else (mine, right)))


def _normal(draw: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, deviation: float) -> np.ndarray:
    """Normal values out of an alphabet of 65536: ten times quicker than as many draws."""
    alphabet = (draw.standard_normal(_ALPHABET) * deviation).astype(dtype)
    return alphabet[draw.integers(0, _ALPHABET, shape, dtype=np.uint16)]


def _cycle(values: tuple[float, ...], start: int, stop: int) -> np.ndarray:
    return np.array(values)[np.arange(start, stop) % len(values)]


ROWS, COLUMNS, BATCH = 64, 256, 3
"""Elements of a piece that are judged one by one: that many, both ends among them; every other one in a sum along its
row."""
SUM = 1024
"""Columns in such a sum: at least that many where there are so many, less than twice."""
_BLOCK = 1 << 22


@dataclass(frozen=True)
class GemmErrors:
    """Of the judged elements of one piece, scales undone, so that results lie near 1.

    Args:
        device, floor: errors of the device and of the floor, float64 [n].
        exact: float64 [n].
        sums: of every row, the errors of signed sums along it, over the root of the columns in each and against the
            row's norm; float64.
    """

    device: np.ndarray
    floor: np.ndarray
    exact: np.ndarray
    sums: np.ndarray


def measure_errors(piece: GemmPiece, result: np.ndarray, dtype: str, draw: np.random.Generator) -> GemmErrors:
    """Errors of a device's result [M, N] or [batch, M, N] for this piece.

    Args:
        draw: chooses what is judged.
    """
    left, right, result = (
        operand if operand.ndim == 3 else operand[None] for operand in (piece.left, piece.right, result)
    )
    rows, columns = _sample(left.shape[-2], ROWS, draw), _sample(right.shape[-1], COLUMNS, draw)
    scale = piece.row_scale[rows] * piece.column_scale[columns]
    signs = draw.choice([-1.0, 1.0], right.shape[-1]) / piece.column_scale
    chosen, parts, sums = set(_sample(len(right), BATCH, draw)), [], []
    for number, (w, device) in enumerate(zip(right, result, strict=True)):
        x = left[number if len(left) > 1 else 0]
        sums.append(_sums(device, x, w, signs) / (piece.row_scale * _size(x / piece.row_scale)))
        if number in chosen:
            some, part = x[rows], w[:, columns]
            exact = some.astype(np.float64) @ part.astype(np.float64)
            floor = sequential(some, part).astype(DTYPES[dtype]).astype(np.float64)
            parts.append(((device[rows][:, columns] - exact) / scale, (floor - exact) / scale, exact / scale))
    device_errors, floor_errors, exact_values = (
        np.concatenate([values.ravel() for values in part]) for part in zip(*parts, strict=True)
    )
    return GemmErrors(device_errors, floor_errors, exact_values, np.concatenate(sums).ravel())


def sequential(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left [M, K] times right [K, N], one product after the other in float32."""
    left, right = left.astype(np.float32), right.astype(np.float32)
    total = np.zeros((len(left), right.shape[1]), np.float32)
    for column, row in zip(left.T, right, strict=True):
        total += column[:, None] * row
    return total


def _sums(result: np.ndarray, left: np.ndarray, right: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Errors of weighted sums along each row: checksums (Huang and Abraham, 1984), float64 [M, sums]."""
    starts = np.arange(max(1, len(weights) // SUM)) * len(weights) // max(1, len(weights) // SUM)
    widths = np.diff(np.append(starts, len(weights)))
    with np.errstate(all="ignore"):  # a broken device's infinities
        exact = left.astype(np.float64) @ _along(right, weights, starts)
        errors: np.ndarray = (_along(result, weights, starts) - exact) / np.sqrt(widths)
        return errors


def _size(rows: np.ndarray) -> np.ndarray:
    """Each row's norm against the usual one: errors are as large as the row. A row of nothing counts as a tenth."""
    norms = np.sqrt(np.sum(np.square(rows, dtype=np.float64), axis=1))
    sizes: np.ndarray = np.maximum(norms / np.sqrt(np.mean(np.square(norms))), 0.1)[:, None]
    return sizes


def _along(matrix: np.ndarray, weights: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Weighted sums of columns from each start to the next, in float64, a few rows at a time."""
    step = max(1, _BLOCK // matrix.shape[1])
    parts = (matrix[at : at + step] * weights for at in range(0, len(matrix), step))
    return np.concatenate([np.add.reduceat(part, starts, axis=1) for part in parts])


def _sample(size: int, count: int, draw: np.random.Generator) -> np.ndarray:
    """Up to `count` of `size` places: both ends, where tiles end, and some in between."""
    if size <= count:
        return np.arange(size)
    end = count // 3
    middle = draw.choice(np.arange(end, size - end), count - 2 * end, replace=False)
    return np.concatenate([np.arange(end), np.sort(middle), np.arange(size - end, size)])
