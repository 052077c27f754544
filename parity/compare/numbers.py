"""Judging stages that are numbers: statistics in the unit of the policy's bounds, and where they first break."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.compare import statistics
from parity.compare.columns import ColumnErrors
from parity.compare.evidence import Lack, lack
from parity.compare.places import first_of, labels, where
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, WARN, StageResult, join
from parity.compare.rows import HALF_ULP, NOISY, StageRows, pooled_ratio, quantile, row_floors
from parity.compare.statistics import beyond, fits
from parity.compare.structure import Finding, check_values
from parity.metrics import PairMetrics, measure, topk_overlap
from parity.policy import OWN, Bound, Row

TOP = (1, 5, 50)


@dataclass(frozen=True)
class RowErrors:
    """Relative row errors of a device and what they are compared with, [R] each, with their rows.

    In x noise, `floor` is robust against a lucky rounding, `noisy` against a row noisier than the typical
    one as well: all rows together are compared with the first, a single row with the second. `element` is
    the row's largest error over `peak`, the largest that its floor has or can be expected to have. As plain
    figures, both floors are 1 and `peak` is the row's RMS. `weight` is the squared norm of the golden's row.
    """

    rows: StageRows
    device: np.ndarray
    floor: np.ndarray
    noisy: np.ndarray
    element: np.ndarray
    peak: np.ndarray
    weight: np.ndarray
    excluded: np.ndarray

    @classmethod
    def of(cls, rows: StageRows, excluded: np.ndarray, device: PairMetrics, floor: PairMetrics, unit: str) -> RowErrors:
        """From the measurements of device and floor against the golden, in this unit (noise or relative)."""
        own, weight = floor.rows.rel_l2, device.rows.golden_sq
        element = size = np.sqrt(weight / max(int(np.prod(rows.golden.shape[1:])), 1))
        floors = noisy = np.ones_like(own)
        if unit == "noise":
            floors, noisy = row_floors(own, excluded), row_floors(own, excluded, NOISY)
            element = np.maximum(floor.rows.max_abs, noisy * size * crest(floor, own * size))
        safe = np.maximum(element, np.finfo(np.float32).tiny)
        return cls(rows, device.rows.rel_l2, floors, noisy, device.rows.max_abs / safe, safe, weight, excluded)

    def statistics(self, keep: np.ndarray) -> dict[str, float]:
        """The row statistics over these rows."""
        device, floor, noisy, weight = (side[keep] for side in (self.device, self.floor, self.noisy, self.weight))
        return {
            "l2": pooled_ratio(device, floor, weight),
            "median": quantile(device) / quantile(floor),
            "worst_row": float((device / noisy).max()),
            "largest": float(self.element[keep].max()),
        }

    def bad(self, row: Row, share: float = 1.0) -> np.ndarray:
        """Rows [R] (bool) that are kept and beyond a share of a bound of a single row; of l2's where the policy has
        none."""
        exceeds = np.zeros(len(self.excluded), bool)
        for name, figures in (("worst_row", self.device / self.noisy), ("largest", self.element)):
            if name in row.bounds and not (name == "largest" and self.rows.sketched):
                exceeds |= ~(figures <= share * row.bounds[name].warn)
        if not {"worst_row", "largest"} & set(row.bounds) and "l2" in row.bounds:
            exceeds = ~(self.device / self.noisy <= share * row.bounds["l2"].warn)
        return np.asarray(exceeds & ~self.excluded)

    def allowed(self, row: Row) -> dict[str, float]:
        """The largest relative error that each bound lets pass, and the pooled `floor`, over the rows that are kept."""
        keep = ~self.excluded
        if row.judge != "noise" or not keep.any():
            return {}
        floor, weight = self.floor[keep], self.weight[keep]
        some = keep & (self.weight > 0)
        peak = (self.peak[some] / np.sqrt(self.weight[some])).max(initial=0.0)
        pooled = pooled_ratio(floor, np.ones(len(floor)), weight)
        error = {
            "l2": pooled,
            "median": quantile(floor),
            "worst_row": float(self.noisy[keep].max()),
            "largest": float(peak),
        }
        return {name: row.bounds[name].warn * error[name] for name in error if name in row.bounds} | {"floor": pooled}


def crest(floor: PairMetrics, rms: np.ndarray) -> float:
    """The typical row's largest error over its RMS error: about sqrt(3) for 6 columns, 4 for 1,000."""
    noisy = rms > 0
    return quantile(floor.rows.max_abs[noisy] / rms[noisy]) if noisy.any() else 1.0


def judge_numbers(rows: StageRows, excluded: np.ndarray, row: Row) -> tuple[StageResult, list[Finding]]:
    """Judge an approximate stage by its bounds; inconclusive if every row is set apart or evidence is missing."""
    ulps = any(name.startswith("ulp_") for name in row.bounds)
    device = measure(rows.golden, rows.device, row_axes=1, ulps=ulps)
    floor = measure(rows.golden, rows.noise_floor, row_axes=1)
    unit = "relative" if row.judge == "relative" else "noise"
    errors = RowErrors.of(rows, excluded, device, floor, unit)
    floors = errors.floor if unit == "noise" else row_floors(floor.rows.rel_l2, excluded)
    keep = ~excluded
    figures = errors.statistics(keep) if keep.any() else {}
    figures |= _directed(rows, keep, row) if figures else {}
    columns = ColumnErrors.of(rows, keep, unit) if "worst_column" in row.bounds else None
    figures |= {"worst_column": columns.worst} if columns and figures else {}
    seen = statistics.Measurement(rows, device, floor, row)
    figures |= {name: statistics.STATISTICS[name](seen) for name in row.bounds if name not in OWN}
    missing = lack(rows, device, floor, row, errors.allowed(row) | _allowed(columns, row))
    verdict = _verdict(figures, row, missing)
    topk = _overlap(rows.golden, rows.device) if rows.named.stage.part == "logits" else {}
    result = StageResult(
        **labels(rows, row),
        verdict=verdict,
        rows_apart=int(excluded.sum()),
        relative_l2=device.rel_l2,
        floor_l2=pooled_ratio(floors[keep], np.ones(keep.sum()), errors.weight[keep]),
        max_abs=device.max_abs,
        mean_abs=device.mean_abs,
        rms_abs=device.rms_abs,
        cosine=device.cosine,
        x=figures | _plain(device, floor, unit) | (_missed(rows, topk) if unit == "noise" else {}),
        bounds={name: (bound.ok, bound.warn) for name, bound in row.bounds.items()},
        topk=topk,
        **(failing_place(errors, row, columns) if verdict in (FAIL, WARN) else {}),
        note=missing.note if missing else "",
    )
    return result, check_values(rows, device, floor)


def _verdict(figures: dict[str, float], row: Row, missing: Lack | None) -> str:
    """Every bound joined by AND; missing evidence turns a pass into inconclusive, never a failure into one."""
    if row.judge == "none":
        return NOT_JUDGED
    verdicts = [bound_verdict(figures[name], bound) for name, bound in row.bounds.items() if name in figures]
    verdicts += [INCONCLUSIVE] if missing or len(verdicts) < len(row.bounds) else []
    return join(verdicts)


def _allowed(columns: ColumnErrors | None, row: Row) -> dict[str, float]:
    """As `RowErrors.allowed`, of columns."""
    if columns is None or row.judge != "noise":
        return {}
    return {"worst_column": row.bounds["worst_column"].warn * float(columns.noise.max(initial=0.0))}


def _directed(rows: StageRows, keep: np.ndarray, row: Row) -> dict[str, float]:
    """Scale and bias: standard errors beyond the floor's own, or plain in the unit of the golden."""
    if not {"scale", "bias"} & set(row.bounds):
        return {}
    golden, device, floor = (
        side if keep.all() else side[keep] for side in (rows.golden, rows.device, rows.noise_floor)
    )
    if row.judge == "relative":
        (line,) = fits(golden, device)
        return {"scale": abs(line.scale), "bias": abs(line.bias)}
    return dict(zip(("scale", "bias"), beyond(*fits(golden, device, floor)), strict=True))


def _plain(device: PairMetrics, floor: PairMetrics, unit: str) -> dict[str, float]:
    """Max and mean absolute difference and cosine distance over all rows, in x noise or relative to the RMS."""
    size = float(np.sqrt(device.rows.golden_sq.sum() / max(device.count, 1))) or 1.0
    scale = {"max_abs": size, "mean_abs": size, "cosine": 1.0}
    if unit == "noise":
        least = {"max_abs": HALF_ULP * size, "mean_abs": HALF_ULP * size, "cosine": HALF_ULP**2 / 2}
        noise = {"max_abs": floor.max_abs, "mean_abs": floor.mean_abs, "cosine": floor.cosine_distance}
        scale = {name: max(noise[name], least[name]) for name in noise}
    error = {"max_abs": device.max_abs, "mean_abs": device.mean_abs, "cosine": device.cosine_distance}
    return {name: error[name] / scale[name] for name in error}


def _overlap(golden: np.ndarray, other: np.ndarray) -> dict[int, float]:
    """Mean share of the golden's top-k logits among the other's."""
    return {k: float(share.mean()) for k, share in topk_overlap(golden, other, TOP).items()}


def _missed(rows: StageRows, topk: dict[int, float]) -> dict[str, float]:
    """Share of the golden's top-k that the device misses, over what the floor misses (one place at the least)."""
    floor = _overlap(rows.golden, rows.noise_floor) if topk else {}
    return {f"top{k}": (1 - topk[k]) / max(1 - floor[k], 1 / (k * len(rows.golden))) for k in topk}


def bound_verdict(value: float, bound: Bound) -> str:
    """Pass, warn or fail; NaN fails."""
    return PASS if value <= bound.ok else WARN if value <= bound.warn else FAIL


def failing_place(errors: RowErrors, row: Row, columns: ColumnErrors | None = None) -> dict[str, Any]:
    """The worst row, and the first one beyond its own bound: in the first tensor (by round, then prompt) that breaks a
    bound alone. Where that tensor is off as a whole (a scale, a bias) and no row of it is, its worst row stands for it.
    Where a column is off and no row as a whole is, its rows are those that are off in it.
    """
    from parity.compare.relations import CLEARLY

    rows, keep = errors.rows, ~errors.excluded
    bad, size = errors.bad(row), errors.device / errors.floor
    if columns is not None and not bad.any() and columns.worst > (bound := row.bounds["worst_column"].warn):
        place = {"column": columns.place(rows.golden.shape[1:])}
        return where(rows, columns.bad(rows, keep, bound), keep, size) | place
    first = None
    for round_, prompt in sorted(set(zip(rows.round[keep].tolist(), rows.prompt[keep].tolist(), strict=True))):
        inside = keep & (rows.round == round_) & (rows.prompt == prompt)
        figures = errors.statistics(inside)
        bounds = {name: bound for name, bound in row.bounds.items() if not (name == "largest" and rows.sketched)}
        if any(bound_verdict(figures[name], bound) == FAIL for name, bound in bounds.items() if name in figures):
            alone = bad & inside
            first = first_of(rows, alone) if alone.any() else int(np.where(inside, size, -1.0).argmax())
            break
    return where(rows, bad, keep, size, first, unclear=errors.bad(row, CLEARLY) & ~bad)
