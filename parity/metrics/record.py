"""The records a measurement returns: frozen, honest, and free of NaN."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, sqrt
from typing import Any

import numpy as np

from parity.arrays import Array
from parity.metrics import sums as at
from parity.metrics.moments import ratio

Index = tuple[int, ...]


def plain_numbers(value: Any) -> Any:
    """`value` for strict JSON: infinities become the strings "inf" and "-inf" (`float` reads them back)."""
    if isinstance(value, dict):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain_numbers(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value


@dataclass(frozen=True)
class NonFinite:
    """Elements that are NaN or infinite; they are excluded from every sum.

    Attributes:
        mismatches: positions where one side is NaN and the other is not, or one side is infinite and the
            other is not the same infinity.
        first: index of the first of them.
    """

    golden_nan: int = 0
    golden_inf: int = 0
    device_nan: int = 0
    device_inf: int = 0
    mismatches: int = 0
    first: Index | None = None


@dataclass(frozen=True)
class WorstElement:
    """The largest absolute difference: where, and the two values there."""

    index: Index
    golden: float
    device: float
    abs: float


@dataclass(frozen=True)
class WorstRow:
    """The row of the largest relative L2; `index` runs over the row axes."""

    index: Index
    rel_l2: float


@dataclass(frozen=True)
class UlpDistances:
    """How many units of least precision lie between the two sides of every finite pair.

    Attributes:
        unit: dtype in whose ULP the distances count: the coarser of the two.
        histogram: bucket 0 counts equal elements, bucket k distances in [2^(k-1), 2^k - 1].
        largest: the largest distance.
    """

    unit: str
    histogram: tuple[int, ...]
    largest: int

    def share(self, within: int) -> float:
        """Share of finite pairs at most `within` ULP apart; `within` must be 2^k - 1 (0, 1, 3, 7, ...)."""
        if within < 0 or within & (within + 1):
            raise ValueError(f"{within} ULP is no bucket bound; use 0, 1, 3, 7, ...")
        count = sum(self.histogram)
        return sum(self.histogram[: within.bit_length() + 1]) / count if count else 1.0


@dataclass(frozen=True, eq=False)
class RowSums:
    """Per-row sums, for floors and profiles: every array is float64 of shape `shape`, the lengths of the row axes."""

    shape: tuple[int, ...]
    table: Array = field(repr=False)

    def _column(self, column: int) -> Array:
        return self.table[:, column].reshape(self.shape)

    @property
    def count(self) -> Array:
        """Elements finite on both sides."""
        return self._column(at.N)

    @property
    def error_sq(self) -> Array:
        """Sum of (device - golden)^2."""
        return self._column(at.EE)

    @property
    def golden_sq(self) -> Array:
        """Sum of golden^2."""
        return self._column(at.GG)

    @property
    def max_abs(self) -> Array:
        """Largest |device - golden|, exact to a float32 rounding."""
        return self._column(at.MAX)

    @cached_property
    def rel_l2(self) -> Array:
        """||device - golden|| / ||golden||; inf where a zero golden row has an error, 0 where it has none."""
        return ratio(np.sqrt(self.error_sq), np.sqrt(self.golden_sq), self.max_abs > 0)


@dataclass(frozen=True, eq=False)
class PairMetrics:
    """How far a device tensor is from its golden. No field is ever NaN; an infinite one means "out of bounds".

    Attributes:
        size: elements of the tensor.
        count: elements finite on both sides; all numbers below are over these. 0 means no evidence.
        max_abs, mean_abs: of e = device - golden, in the tensors' own unit.
        rel_l2: ||e|| / ||golden||. Golden all zero: 0 without an error, else inf.
        cosine_distance: 1 - cosine, from e (Gram determinant), so that it is exact when tiny. Both sides
            zero: 0; only one: 1.
        golden_constant, device_constant: more than one finite pair, all of that side equal.
        worst_element: None where `count` is 0.
        nonfinite: NaN and infinities.
        rows: per-row sums.
        ulps: None unless they were asked for.
    """

    size: int
    count: int
    max_abs: float
    mean_abs: float
    rel_l2: float
    cosine_distance: float
    golden_constant: bool
    device_constant: bool
    worst_element: WorstElement | None
    nonfinite: NonFinite
    rows: RowSums = field(repr=False)
    ulps: UlpDistances | None = None

    @property
    def rms_abs(self) -> float:
        """RMS of e, in the tensors' own unit; 0 where `count` is 0."""
        return sqrt(float(self.rows.error_sq.sum()) / self.count) if self.count else 0.0

    @cached_property
    def worst_row(self) -> WorstRow | None:
        """None where `count` is 0."""
        if not self.count:
            return None
        flat = int(self.rows.rel_l2.argmax())
        index = tuple(int(place) for place in np.unravel_index(flat, self.rows.shape))
        return WorstRow(index, float(self.rows.rel_l2.flat[flat]))

    @property
    def cosine(self) -> float:
        """Cosine similarity, for the reader's eye; judge by `cosine_distance`."""
        return 1.0 - self.cosine_distance


@dataclass(frozen=True)
class ExactMetrics:
    """How far an integer or boolean tensor is from its golden.

    Attributes:
        size: elements.
        mismatches: elements that differ.
        first: index of the first of them, with the two values.
        worst: largest absolute difference, exact.
    """

    size: int
    mismatches: int
    first: Index | None = None
    golden: int | None = None
    device: int | None = None
    worst: int = 0
