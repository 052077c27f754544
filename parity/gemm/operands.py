"""Operands of a multiplication: the same for the same seed, in pieces that fit memory, of many magnitudes."""

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
class Piece:
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


def cut(gemm: Gemm, limit: int) -> list[tuple[slice, slice]]:
    """Batch and columns of each piece; no operand or result of one is larger than `limit` elements, if that can be.

    The batch is cut first: its members share nothing. K is never cut.
    """
    one = max(gemm.m, gemm.k) * gemm.n
    if one <= limit:
        together = max(1, limit // one)
        return [(slice(at, min(at + together, gemm.batch)), slice(0, gemm.n)) for at in range(0, gemm.batch, together)]
    width = max(1, limit // max(gemm.m, gemm.k))
    columns = [slice(at, min(at + width, gemm.n)) for at in range(0, gemm.n, width)]
    return [(slice(number, number + 1), part) for number in range(gemm.batch) for part in columns]


def pieces(gemm: Gemm, seed: int, limit: int) -> Iterator[Piece]:
    """The operands, piece by piece: normal values, results near 1 before the scales."""
    key, dtype = [seed, gemm.batch, gemm.m, gemm.k, gemm.n], DTYPES[gemm.values]
    lefts = 1 if gemm.shared or gemm.batch == 1 else gemm.batch
    draw = np.random.default_rng(key)
    left = _normal(draw, (lefts, gemm.m, gemm.k), dtype, 1.0)
    left *= _cycle(ROW_SCALES, 0, gemm.m)[:, None].astype(dtype)
    for number, (batch, columns) in enumerate(cut(gemm, limit)):
        draw, width = np.random.default_rng([*key, number]), columns.stop - columns.start
        right = _normal(draw, (batch.stop - batch.start, gemm.k, width), dtype, gemm.k**-0.5)
        right *= _cycle(COLUMN_SCALES, columns.start, columns.stop).astype(dtype)
        mine = left if lefts == 1 else left[batch]
        yield Piece(number, batch, columns, *((mine[0], right[0]) if gemm.batch == 1 else (mine, right)))


def _normal(draw: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, deviation: float) -> np.ndarray:
    """Normal values out of an alphabet of 65536: ten times quicker than as many draws."""
    alphabet = (draw.standard_normal(_ALPHABET) * deviation).astype(dtype)
    return alphabet[draw.integers(0, _ALPHABET, shape, dtype=np.uint16)]


def _cycle(values: tuple[float, ...], start: int, stop: int) -> np.ndarray:
    return np.array(values)[np.arange(start, stop) % len(values)]
