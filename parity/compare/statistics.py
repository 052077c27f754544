"""Statistics over a whole stage: scale and bias, the figures of other tools, and likeness to the floor's own bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import exp, expm1, hypot, inf, sqrt

import numpy as np

from parity.compare.rows import HALF_ULP, StageRows
from parity.errors import UsageError
from parity.metrics import PairMetrics, UlpDistances, topk_overlap
from parity.metrics.dtypes import BFLOAT16
from parity.metrics.moments import Moments
from parity.policy import Row

SIGMAS = 5.0
"""Where the policy draws the line; few clusters are widened so that this many keep their rarity."""

LEAST = float(HALF_ULP) / 10
"""Smallest standard error: at five of them half of half a ULP, 0.056 %, however many elements prove it. Clean
devices are off in a direction, too: a nonlinear stage turns its input's noise into shrinkage, to second
order, and two implementations need not shrink alike. So the square of the floor's noise is a standard error
of the scale as well: at a chained noise of 1.6 % the clean NumPy device shrinks the drafter's last attention
by 0.076 %, as our bfloat16 reference does (0.075 %) and vLLM's does not (0.002 %). Local noise is so small
that its square never counts."""

CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class GoldenRows:
    """Some rows of a golden, float32 [N, C], and what is of them alone: two fits of one stage ask for it."""

    values: np.ndarray

    @cached_property
    def weight(self) -> np.ndarray:
        """One over each row's RMS [N, 1]; 0 for a row of zeros."""
        size = np.sqrt(np.mean(np.square(self.values, dtype=np.float64), axis=1, keepdims=True))
        return np.asarray(np.divide(1.0, size, out=np.zeros_like(size), where=size > 0))

    @cached_property
    def units(self) -> np.ndarray:
        """The values over their row's RMS, float64 [N, C]."""
        return np.asarray(self.values * self.weight)

    @cached_property
    def sums(self) -> tuple[float, float]:
        """Sum of these, and of their squares."""
        return float(self.units.sum()), float(np.einsum("rc,rc->", self.units, self.units))


Standardised = tuple[slice, GoldenRows, np.ndarray]
"""Some rows, the golden's values of these, and the error [N, C] over the golden row's RMS."""


@dataclass(frozen=True)
class LineFit:
    """Scale error (slope minus one), bias in multiples of the row's RMS, their standard errors, and the RMS error.

    `noise` is in multiples of the row's RMS, like the bias.
    """

    scale: float
    bias: float
    scale_error: float
    bias_error: float
    noise: float = 0.0


def fit(golden: np.ndarray, other: np.ndarray) -> LineFit:
    """Fit `other` [R, ...] against `golden` [R, ...]; elements that are not finite count as equal.

    A golden without spread has no scale; its bias is the mean error. No BLAS: its threads cost twenty times what the
    sums of a small stage do.
    """
    return fits(golden, other)[0]


def fits(golden: np.ndarray, *others: np.ndarray) -> list[LineFit]:
    """As `fit`, of several against one golden."""
    golden, others = golden.reshape(len(golden), -1), tuple(other.reshape(len(other), -1) for other in others)
    whole = list(_chunks(golden)) if golden.size <= CHUNK else None
    return [_fit(golden, other, whole) for other in others]


def _fit(golden: np.ndarray, other: np.ndarray, whole: list[tuple[slice, GoldenRows]] | None) -> LineFit:
    count = golden.size
    sums = np.zeros(5)
    kept = None if whole is None else list(_standardised(whole, other))
    for _, rows, e in kept or _standardised(_chunks(golden), other):
        crossed = np.einsum("rc,rc->", rows.units, e)
        sums += (rows.sums[0], e.sum(), rows.sums[1], crossed, np.einsum("rc,rc->", e, e))
    mean, error = sums[:2] / count
    spread = sums[2] - count * mean * mean
    # A constant golden: what is left of its spread is the rounding of the sums.
    scale = (sums[3] - count * mean * error) / spread if spread > 1e-6 * count else 0.0
    bias = error - scale * mean
    noise = sqrt(sums[4] / count)
    parts = kept or _standardised(_chunks(golden), other)
    by_row, by_column = _scores(parts, golden.shape, scale, bias, mean, max(spread, 1e-6 * count))
    scale_error, bias_error = (
        hypot(clustered(rows, noise), clustered(columns, noise))
        for rows, columns in zip(by_row, by_column, strict=True)
    )
    return LineFit(float(scale), float(bias), scale_error, bias_error, noise)


def beyond(device: LineFit, floor: LineFit) -> tuple[float, float]:
    """By how many standard errors the device's scale and bias exceed the floor's own, 0 where they do not.

    The bfloat16 reference may be systematically off itself (a rounded RoPE scale is 0.1 %), and a device
    that is off as far is no worse. What it is off beyond that has the uncertainty of both fits; the floor's
    noise alone excuses a scale, never the device's.
    """
    scale_error = max(hypot(device.scale_error, floor.scale_error), LEAST, floor.noise**2)
    bias_error = max(hypot(device.bias_error, floor.bias_error), LEAST)
    return (
        max(abs(device.scale) - abs(floor.scale), 0.0) / scale_error,
        max(abs(device.bias) - abs(floor.bias), 0.0) / bias_error,
    )


def _chunks(golden: np.ndarray) -> Iterator[tuple[slice, GoldenRows]]:
    step = max(CHUNK // max(golden.shape[1], 1), 1)
    for start in range(0, len(golden), step):
        part = slice(start, start + step)
        with np.errstate(invalid="ignore", over="ignore"):
            yield part, GoldenRows(golden[part].astype(np.float32))


def _standardised(chunks: Iterable[tuple[slice, GoldenRows]], other: np.ndarray) -> Iterator[Standardised]:
    """A chunk at a time; zero rows stay zero."""
    for part, rows in chunks:
        with np.errstate(invalid="ignore", over="ignore"):
            e = other[part].astype(np.float32) - rows.values
        finite = np.isfinite(e)
        if not finite.all():
            rows, e = GoldenRows(np.where(finite, rows.values, 0)), np.where(finite, e, 0)
        yield part, rows, e * rows.weight


def _scores(
    parts: Iterable[Standardised], shape: tuple[int, ...], scale: float, bias: float, mean: float, spread: float
) -> tuple[np.ndarray, np.ndarray]:
    """Each row's and each column's part in the error of scale and bias: [2, R] and [2, C]."""
    rows, columns = np.zeros((2, shape[0])), np.zeros((2, shape[1]))
    for part, golden, e in parts:
        left, slope = golden.units * -scale, golden.units - mean
        left += e  # in place: most of a small stage's time goes into new arrays
        left -= bias
        slope *= left
        slope /= spread
        rows[0, part] = slope.sum(axis=1)
        columns[0] += slope.sum(axis=0)
        left /= shape[0] * shape[1]
        left -= mean * slope
        rows[1, part] = left.sum(axis=1)
        columns[1] += left.sum(axis=0)
    return rows, columns


def clustered(scores: np.ndarray, noise: float) -> float:
    """Standard error from the clusters' scores; at most what fully coherent clusters of this noise have."""
    count = len(scores)
    coherent = noise / sqrt(count)
    if count < 3:
        return coherent
    return min(sqrt((scores**2).sum() * count / (count - 1)) * _widening(count - 1), coherent)


def _widening(freedom: int) -> float:
    """Student's t over the normal quantile at SIGMAS for so many degrees of freedom (Wallace 1959)."""
    exponent = SIGMAS**2 * (freedom - 1.5) / (freedom - 1) ** 2 if freedom > 1 else inf
    if exponent > 60:
        return exp(30)
    return sqrt(freedom * expm1(exponent)) / SIGMAS


NXDI_ATOL = 1e-5
"""Absolute part of NxDI's tolerance, of every entry of its map (neuronx_distributed_inference, accuracy)."""


@dataclass(frozen=True)
class Measurement:
    """What a statistic may look at: a stage's rows, what was measured of device and floor, and the policy's row."""

    rows: StageRows
    device: PairMetrics
    floor: PairMetrics
    row: Row


def r_ratio(seen: Measurement) -> float:
    """||device - float32|| / ||bfloat16 - float32|| over everything; infinite where only the device errs."""
    error, noise = (float(side.rows.error_sq.sum()) for side in (seen.device, seen.floor))
    return sqrt(error / noise) if noise else (float("inf") if error else 0.0)


def pearson_distance(seen: Measurement) -> float:
    """1 - Pearson correlation over all elements; 1 where a side is constant and there is an error."""
    m = Moments.of(seen.device.rows.table.sum(axis=0))
    spread = m.variance + 2 * m.covariance + m.error_sq - m.n * m.error_mean**2
    if not (m.variance > 0 and spread > 0):
        return 0.0 if m.error_sq == 0 else 1.0
    return 1.0 - (m.variance + m.covariance) / sqrt(m.variance * spread)


def beyond_tolerance(seen: Measurement) -> float:
    """Largest |device - golden| / (atol + rtol |golden|), by the device's dtype; close up to 1."""
    golden, device = (side.astype(np.float64) for side in (seen.rows.golden, seen.rows.device))
    dtype = seen.rows.device.dtype.name
    if dtype not in seen.row.tolerances:
        raise UsageError(
            f"policy row {seen.row.stages!r} has tolerances for {', '.join(seen.row.tolerances)}, none for {dtype}"
        )
    allowed = seen.row.tolerances[dtype]
    return _largest(np.abs(device - golden) / (allowed.atol + allowed.rtol * np.abs(golden)))


def top_error(k: int | None) -> Callable[[Measurement], float]:
    """Largest error among each row's k largest golden logits (all for None), over the largest of them.

    As NxDI has it (neuron_allclose): beyond `NXDI_ATOL`, and after the row's shift was taken out.
    """

    def statistic(seen: Measurement) -> float:
        golden, device = (side.astype(np.float64) for side in (seen.rows.golden, seen.rows.device))
        golden, device = (side.reshape(len(side), -1) for side in (golden, device))
        device = device - _shift(golden, device)
        if k is not None and k < golden.shape[1]:
            top = np.argpartition(golden, -k, axis=1)[:, -k:]
            golden, device = (np.take_along_axis(side, top, axis=1) for side in (golden, device))
        size = np.maximum(np.abs(golden).max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return _largest(np.maximum(np.abs(device - golden) - NXDI_ATOL, 0) / size)

    return statistic


def _shift(golden: np.ndarray, device: np.ndarray) -> np.ndarray:
    """Intercept [R, 1] of each row's least squares line device ~ slope * golden + shift."""
    means = golden.mean(axis=1, keepdims=True), device.mean(axis=1, keepdims=True)
    centred = golden - means[0]
    spread = (centred**2).sum(axis=1, keepdims=True)
    slope = np.divide((centred * device).sum(axis=1, keepdims=True), spread, out=np.ones_like(spread), where=spread > 0)
    return np.asarray(means[1] - slope * means[0])


def unlike(seen: Measurement) -> float:
    """Share of elements that do not round to the floor's bits, nor to what the golden rounds to.

    A device that keeps more bits than the floor is more exact, and so not unlike: its input is not rounded either.
    """
    device, floor, golden = (
        side.astype(np.float32) for side in (seen.rows.device, seen.rows.noise_floor, seen.rows.golden)
    )
    if np.array_equal(_in_bfloat16(floor), floor):
        device, golden = _in_bfloat16(device), _in_bfloat16(golden)
    alike = [device.view(np.uint32) == side.view(np.uint32) for side in (floor, golden)]
    return float((~(alike[0] | alike[1])).mean())


def _in_bfloat16(values: np.ndarray) -> np.ndarray:
    return values.astype(BFLOAT16).astype(np.float32)


def top_missed(k: int) -> Callable[[Measurement], float]:
    """Mean share of the golden's top k that the device lacks."""
    return lambda seen: 1.0 - float(topk_overlap(seen.rows.golden, seen.rows.device, (k,))[k].mean())


def _ulps(seen: Measurement) -> UlpDistances:
    """The device's; they are counted wherever a policy row bounds them."""
    if seen.device.ulps is None:
        raise ValueError(f"nobody counted the ULPs of {seen.rows.named.name}")
    return seen.device.ulps


def _largest(values: np.ndarray) -> float:
    """Maximum; NaN counts as infinite."""
    return float(np.where(np.isnan(values), np.inf, values).max(initial=0.0))


STATISTICS: dict[str, Callable[[Measurement], float]] = {
    "cosine_distance": lambda seen: seen.device.cosine_distance,
    "pearson_distance": pearson_distance,
    "r_ratio": r_ratio,
    "beyond_tolerance": beyond_tolerance,
    "top5_error": top_error(5),
    "top50_error": top_error(50),
    "top1000_error": top_error(1000),
    "all_error": top_error(None),
    "top1_missed": top_missed(1),
    "top5_missed": top_missed(5),
    "top50_missed": top_missed(50),
    "unlike": unlike,
    "ulp_max": lambda seen: float(_ulps(seen).largest),
    "ulp_beyond": lambda seen: 1.0 - _ulps(seen).share(seen.row.ulp),
}
"""By the name a policy bounds it under."""
