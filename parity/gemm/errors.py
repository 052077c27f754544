"""Errors of one piece against float64, and what an honest multiplication makes of the same elements.

The noise floor is measured, not assumed: the sampled elements once more, their K products added one after the other
in float32, and one rounding to the declared dtype. That is what the device promises (a float32 accumulator, one
rounding) in the order in which float32 loses most: blocked and pairwise sums stay below it. For a bfloat16 result it
is the rounding and nothing else (float32 adds 0.14 % of it at K = 34560); for a float32 result it is the
order of the sum. It shares no code with any engine, nor with the matrix library beneath them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity.gemm.operands import DTYPES, Piece

ROWS, COLUMNS, BATCH = 64, 256, 3
"""Elements of a piece that are judged one by one: that many, both ends among them; every other one in a sum along its row."""
SUM = 1024
"""Columns in such a sum: at least that many where there are so many, less than twice."""
_BLOCK = 1 << 22


@dataclass(frozen=True)
class Errors:
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


def measure(piece: Piece, result: np.ndarray, dtype: str, draw: np.random.Generator) -> Errors:
    """Errors of a device's result [M, N] or [batch, M, N] for this piece.

    Args:
        draw: chooses what is judged.
    """
    left, right, result = (one if one.ndim == 3 else one[None] for one in (piece.left, piece.right, result))
    rows, columns = _sample(left.shape[-2], ROWS, draw), _sample(right.shape[-1], COLUMNS, draw)
    scale = piece.row_scale[rows] * piece.column_scale[columns]
    signs = draw.choice([-1.0, 1.0], right.shape[-1]) / piece.column_scale
    chosen, parts, sums = set(_sample(len(right), BATCH, draw)), [], []
    for number, (w, device) in enumerate(zip(right, result, strict=True)):
        x = left[number if len(left) > 1 else 0]
        sums.append(_sums(device, x, w, signs) / (piece.row_scale * _size(x / piece.row_scale)))
        if number in chosen:
            one, part = x[rows], w[:, columns]
            exact = one.astype(np.float64) @ part.astype(np.float64)
            floor = sequential(one, part).astype(DTYPES[dtype]).astype(np.float64)
            parts.append(((device[rows][:, columns] - exact) / scale, (floor - exact) / scale, exact / scale))
    flat = (np.concatenate([one.ravel() for one in part]) for part in zip(*parts, strict=True))
    return Errors(*flat, np.concatenate(sums).ravel())


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
        return (_along(result, weights, starts) - exact) / np.sqrt(widths)


def _size(rows: np.ndarray) -> np.ndarray:
    """Each row's norm against the usual one: errors are as large as the row. A row of nothing counts as a tenth."""
    norms = np.sqrt(np.sum(np.square(rows, dtype=np.float64), axis=1))
    return np.maximum(norms / np.sqrt(np.mean(np.square(norms))), 0.1)[:, None]


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
