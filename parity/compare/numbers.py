"""Judging stages that are numbers: statistics in the unit of the policy's bounds, and where they first break."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity.compare.floor import HALF_ULP, ratio, row_floors
from parity.compare.places import labels, place_of
from parity.compare.report import FAIL, INCONCLUSIVE, PASS, WARN, Place, StageResult, join
from parity.compare.rows import StageRows
from parity.compare.structure import Finding, check_values
from parity.metrics import PairMetrics, measure, topk_overlap
from parity.policy import Bound, Row

TOP = (1, 5, 50)


@dataclass(frozen=True)
class Errors:
    """Relative row errors of device and floor, [R] each, with the rows they belong to."""

    rows: StageRows
    device: np.ndarray
    floor: np.ndarray
    element: np.ndarray
    weight: np.ndarray
    apart: np.ndarray

    @classmethod
    def of(cls, rows: StageRows, apart: np.ndarray, device: PairMetrics, floor: PairMetrics) -> Errors:
        """From the measurements of device and floor against the golden."""
        floors = row_floors(floor.rows.rel_l2, apart)
        weight = device.rows.golden_sq
        columns = max(int(np.prod(rows.golden.shape[1:])), 1)
        element = np.maximum(floor.rows.max_abs, floors * np.sqrt(weight / columns))
        safe = np.maximum(element, np.finfo(np.float32).tiny)
        return cls(rows, device.rows.rel_l2, floors, device.rows.max_abs / safe, weight, apart)

    def statistics(self, keep: np.ndarray, unit: str) -> dict[str, float]:
        """The policy's statistics over these rows, in x noise or as plain relative errors."""
        device, weight = self.device[keep], self.weight[keep]
        floor = self.floor[keep] if unit == "noise" else np.ones_like(device)
        return {
            "l2": ratio(device, floor, weight),
            "median": float(np.median(device) / np.median(floor)),
            "worst_row": float((device / floor).max()),
            "largest": float(self.element[keep].max()),
        }


def judge_numbers(rows: StageRows, apart: np.ndarray, row: Row) -> tuple[StageResult, list[Finding]]:
    """Judge an approximate stage by `noise` or `relative` bounds; inconclusive if every row is set apart."""
    device, floor = (measure(rows.golden, side, rows=0) for side in (rows.device, rows.floor))
    errors = Errors.of(rows, apart, device, floor)
    keep = ~apart
    found = errors.statistics(keep, row.judge) if keep.any() else {}
    verdict = join(_against(found[name], bound) for name, bound in row.bounds.items()) if found else INCONCLUSIVE
    topk = _overlap(rows.golden, rows.device) if rows.named.stage.part == "logits" else {}
    result = StageResult(
        **labels(rows, row),
        verdict=verdict,
        rows_apart=int(apart.sum()),
        relative_l2=device.rel_l2,
        floor_l2=ratio(errors.floor[keep], np.ones(keep.sum()), errors.weight[keep]),
        max_abs=device.max_abs,
        mean_abs=device.mean_abs,
        cosine=device.cosine,
        x=found | _plain(device, floor, row.judge) | (_missed(rows, topk) if row.judge == "noise" else {}),
        bounds={name: (bound.ok, bound.warn) for name, bound in row.bounds.items()},
        topk=topk,
        first=_first(errors, row) if verdict in (FAIL, WARN) else None,
    )
    return result, check_values(rows, device)


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
    floor = _overlap(rows.golden, rows.floor) if topk else {}
    return {f"top{k}": (1 - topk[k]) / max(1 - floor[k], 1 / (k * len(rows.golden))) for k in topk}


def _against(value: float, bound: Bound) -> str:
    return PASS if value <= bound.ok else WARN if value <= bound.warn else FAIL


def _first(errors: Errors, row: Row) -> Place:
    """The first tensor (by round, then prompt) that breaks a bound by itself, and its worst row."""
    rows, keep = errors.rows, ~errors.apart
    chosen = keep
    for round_, prompt in sorted(set(zip(rows.round[keep].tolist(), rows.prompt[keep].tolist(), strict=True))):
        inside = keep & (rows.round == round_) & (rows.prompt == prompt)
        found = errors.statistics(inside, row.judge)
        if any(_against(found[name], bound) == FAIL for name, bound in row.bounds.items()):
            chosen = inside
            break
    scale = errors.floor if row.judge == "noise" else 1.0
    return place_of(rows, int(np.where(chosen, errors.device / scale, -1.0).argmax()))
