"""Statistics over a stage as a whole: other tools', as they define them, and likeness to the floor's own bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np

from parity.compare.rows import StageRows
from parity.errors import UsageError
from parity.metrics import PairMetrics, topk_overlap
from parity.metrics.formulas import Moments
from parity.policy import Row

NXDI_ATOL = 1e-5
"""Absolute part of NxDI's tolerance, of every entry of its map (neuronx_distributed_inference, accuracy)."""


@dataclass(frozen=True)
class Evidence:
    """What a statistic may look at."""

    rows: StageRows
    device: PairMetrics
    floor: PairMetrics
    row: Row


def r_ratio(seen: Evidence) -> float:
    """||device - float32|| / ||bfloat16 - float32|| over everything; infinite where only the device errs."""
    error, noise = (float(side.rows.error_sq.sum()) for side in (seen.device, seen.floor))
    return sqrt(error / noise) if noise else (float("inf") if error else 0.0)


def pearson_distance(seen: Evidence) -> float:
    """1 - Pearson correlation over all elements; 1 where a side is constant and there is an error."""
    m = Moments.of(seen.device.rows.table.sum(axis=0))
    spread = m.variance + 2 * m.covariance + m.error_sq - m.n * m.error_mean**2
    if not (m.variance > 0 and spread > 0):
        return 0.0 if m.error_sq == 0 else 1.0
    return 1.0 - (m.variance + m.covariance) / sqrt(m.variance * spread)


def beyond_tolerance(seen: Evidence) -> float:
    """Largest |device - golden| / (atol + rtol |golden|), by the device's dtype; close up to 1."""
    golden, device = (side.astype(np.float64) for side in (seen.rows.golden, seen.rows.device))
    dtype = seen.rows.device.dtype.name
    if dtype not in seen.row.tolerances:
        raise UsageError(
            f"policy row {seen.row.stages!r} has tolerances for {', '.join(seen.row.tolerances)}, none for {dtype}"
        )
    allowed = seen.row.tolerances[dtype]
    return _largest(np.abs(device - golden) / (allowed.atol + allowed.rtol * np.abs(golden)))


def top_error(k: int | None) -> Callable[[Evidence], float]:
    """Largest error among each row's k largest golden logits (all for None), over the largest of them.

    As NxDI has it (neuron_allclose): beyond `NXDI_ATOL`, and after the row's shift was taken out.
    """

    def statistic(seen: Evidence) -> float:
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
    return means[1] - slope * means[0]


def unlike(seen: Evidence) -> float:
    """Share of elements that are not, bit for bit, what the floor's own rounding gave."""
    device, floor = (side.astype(np.float32).view(np.uint32) for side in (seen.rows.device, seen.rows.floor))
    return float((device != floor).mean())


def top_missed(k: int) -> Callable[[Evidence], float]:
    """Mean share of the golden's top k that the device lacks."""
    return lambda seen: 1.0 - float(topk_overlap(seen.rows.golden, seen.rows.device, (k,))[k].mean())


def _largest(values: np.ndarray) -> float:
    """Maximum; NaN counts as infinite."""
    return float(np.where(np.isnan(values), np.inf, values).max(initial=0.0))


STATISTICS: dict[str, Callable[[Evidence], float]] = {
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
    "ulp_max": lambda seen: float(seen.device.ulp_max),
    "ulp_beyond": lambda seen: 1.0 - seen.device.ulp_share(seen.row.ulp),
}
"""By the name a policy bounds it under."""
