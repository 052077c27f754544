"""The records a measurement returns: frozen, honest, and free of NaN."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np

from parity.metrics import partial as p

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
        first: index of the first of them, in the axes of the arrays.
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


@dataclass(frozen=True, eq=False)
class Rows:
    """Per-row sums, for floors and profiles: every array is float64 of shape `shape`, the row axes.

    Attributes:
        axes: which axes of the arrays are row axes.
        shape: their lengths.
    """

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    table: np.ndarray = field(repr=False)

    def _column(self, column: int) -> np.ndarray:
        return self.table[:, column].reshape(self.shape)

    @property
    def count(self) -> np.ndarray:
        """Elements finite on both sides."""
        return self._column(p.N)

    @property
    def error_sq(self) -> np.ndarray:
        """Sum of (device - golden)^2."""
        return self._column(p.EE)

    @property
    def golden_sq(self) -> np.ndarray:
        """Sum of golden^2."""
        return self._column(p.GG)

    @property
    def device_sq(self) -> np.ndarray:
        """Sum of device^2, from the other sums."""
        return np.maximum(self.golden_sq + 2 * self._column(p.GE) + self.error_sq, 0.0)

    @property
    def max_abs(self) -> np.ndarray:
        """Largest |device - golden|, exact to a float32 rounding."""
        return self._column(p.MAX)

    @cached_property
    def rel_l2(self) -> np.ndarray:
        """||device - golden|| / ||golden||; inf where a zero golden row has an error, 0 where it has none."""
        from parity.metrics.formulas import ratio

        return ratio(np.sqrt(self.error_sq), np.sqrt(self.golden_sq), self.max_abs > 0)


@dataclass(frozen=True, eq=False)
class PairMetrics:
    """How far a device tensor is from its golden. No field is ever NaN; an infinite one means "out of bounds".

    Attributes:
        size: elements of the tensor.
        count: elements finite on both sides; all numbers below are over these. 0 means no evidence.
        max_abs, mean_abs, rmse: of e = device - golden, in the tensors' own unit.
        rel_l2: ||e|| / ||golden||. Golden all zero: 0 without an error, else inf.
        cosine_distance: 1 - cosine, from e (Gram determinant), so that it is exact when tiny. Both sides
            zero: 0; only one: 1.
        sqnr_db: 20 log10(||golden|| / ||e||); inf without an error, -inf for a zero golden with one.
        scale_error: s - 1 of the least squares fit device ~ s * golden + bias. Constant golden: 0.
        bias: of the same fit; the mean error where the golden is constant.
        golden_constant, device_constant: more than one finite pair, all of that side equal.
        signed_zeros: positions where one side is -0 and the other +0 (no error in any other metric).
        ulp_unit: dtype in whose ULP the histogram counts: the coarser of the two.
        ulp_histogram: bucket 0 counts equal elements, bucket k distances in [2^(k-1), 2^k - 1].
        ulp_max: the largest distance.
        worst_element, worst_row: None where `count` is 0.
        nonfinite: NaN and infinities.
        rows: per-row sums.
    """

    size: int
    count: int
    max_abs: float
    mean_abs: float
    rmse: float
    rel_l2: float
    cosine_distance: float
    sqnr_db: float
    scale_error: float
    bias: float
    golden_constant: bool
    device_constant: bool
    signed_zeros: int
    ulp_unit: str
    ulp_histogram: tuple[int, ...]
    ulp_max: int
    worst_element: WorstElement | None
    worst_row: WorstRow | None
    nonfinite: NonFinite
    rows: Rows = field(repr=False)

    @property
    def cosine(self) -> float:
        """Cosine similarity, for the reader's eye; judge by `cosine_distance`."""
        return 1.0 - self.cosine_distance

    @property
    def scale(self) -> float:
        """Slope of the least squares fit."""
        return 1.0 + self.scale_error

    def ulp_share(self, within: int) -> float:
        """Share of finite pairs at most `within` ULP apart; `within` must be 2^k - 1 (0, 1, 3, 7, ...)."""
        if within < 0 or within & (within + 1):
            raise ValueError(f"{within} ULP is no bucket bound; use 0, 1, 3, 7, ...")
        buckets = self.ulp_histogram[: within.bit_length() + 1]
        return sum(buckets) / self.count if self.count else 1.0

    def to_dict(self, rows: bool = False) -> dict[str, Any]:
        """JSON-ready; infinities as strings. `rows` adds the relative L2 of every row, in C order."""
        names = [name for name in self.__dataclass_fields__ if name != "rows"]
        plain = {name: getattr(self, name) for name in names}
        for name in ("worst_element", "worst_row", "nonfinite"):
            plain[name] = plain[name] and asdict(plain[name])
        plain |= {"cosine": self.cosine, "scale": self.scale}
        if rows:
            plain["row_rel_l2"] = self.rows.rel_l2.ravel().tolist()
        return plain_numbers(plain)


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

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return plain_numbers(asdict(self))
