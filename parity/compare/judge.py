"""One stage's verdict: its statistics in the unit of the policy's bounds, and where it first shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.compare.decisions import BUG, NOISE, SAME, TIE, Choices, draft_columns, judge, judge_experts
from parity.compare.floor import ratio, row_floors
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
    device = measure(rows.golden, rows.device, rows=0)
    errors = Errors.of(rows, apart, device, measure(rows.golden, rows.floor, rows=0))
    keep = ~apart
    found = errors.statistics(keep, row.judge) if keep.any() else {}
    verdict = join(_against(found[name], bound) for name, bound in row.bounds.items()) if found else INCONCLUSIVE
    result = StageResult(
        **_common(rows, row),
        verdict=verdict,
        rows_apart=int(apart.sum()),
        relative_l2=device.rel_l2,
        floor_l2=ratio(errors.floor[keep], np.ones(keep.sum()), errors.weight[keep]),
        max_abs=device.max_abs,
        mean_abs=device.mean_abs,
        cosine=device.cosine,
        x=found,
        bounds={name: (bound.ok, bound.warn) for name, bound in row.bounds.items()},
        topk=_overlap(rows) if rows.named.stage.part == "logits" else {},
        first=_first(errors, row) if verdict in (FAIL, WARN) else None,
    )
    return result, check_values(rows, device)


def judge_exact(rows: StageRows, row: Row) -> StageResult:
    """Judge a stage in which no difference is allowed."""
    same = (rows.golden == rows.device).reshape(len(rows.golden), -1).all(axis=1)
    return _choices(rows, Choices(np.where(same, SAME, BUG), np.zeros(len(same))), row)


def judge_choices(rows: StageRows, scores: StageRows | None, apart: np.ndarray, row: Row) -> StageResult:
    """Judge tokens or experts by the golden's own scores; without scores every difference is a bug."""
    if scores is None or len(scores.golden) != len(rows.golden):
        return judge_exact(rows, row)
    noise = _noise(scores, apart)
    if row.judge == "experts":
        return _choices(rows, judge_experts(scores.golden, rows.golden, rows.device, noise), row)
    return _choices(rows, _tokens(rows, scores, noise), row)


def _tokens(rows: StageRows, scores: StageRows, noise: np.ndarray) -> Choices:
    """Tokens against the logits that they were chosen from."""
    if rows.named.stage.side == "drafter":
        mine = scores.golden.argmax(axis=1)
        theirs = draft_columns(scores.golden, rows.golden, rows.device)
        unknown = theirs < 0
        theirs = np.where(unknown, scores.device.astype(np.float32).argmax(axis=1), theirs)
        legal = ~unknown | (theirs != mine)
    else:
        mine, legal = rows.golden, (rows.device >= 0) & (rows.device < scores.golden.shape[1])
        theirs = np.where(legal, rows.device, 0)
    judged = judge(scores.golden, mine, theirs, noise)
    same = rows.golden == rows.device
    return Choices(np.where(same, SAME, np.where(legal, judged.verdict, BUG)), np.where(same, 0.0, judged.regret))


def _choices(rows: StageRows, choices: Choices, row: Row) -> StageResult:
    counts = {name: choices.count(name) for name in (SAME, TIE, NOISE, BUG)}
    bugs = np.flatnonzero(choices.verdict == BUG)
    first = min(bugs, key=lambda i: (rows.round[i], rows.prompt[i], rows.position[i]), default=None)
    return StageResult(
        **_common(rows, row),
        verdict=FAIL if len(bugs) else PASS,
        choices=counts,
        largest_regret=float(choices.regret.max(initial=0.0)),
        first=None if first is None else _place(rows, int(first)),
    )


def _common(rows: StageRows, row: Row) -> dict[str, Any]:
    named = rows.named
    return dict(
        stage=named.name,
        family=named.stage.template,
        layer=named.layer,
        judge=row.judge,
        reason=row.reason,
        rows=len(rows.golden),
    )


def _noise(scores: StageRows, apart: np.ndarray) -> np.ndarray:
    """RMS noise of each row's scores [R]; behind an explained router tie the row's own error."""
    columns = scores.golden.shape[1]
    device, floor = measure(scores.golden, scores.device), measure(scores.golden, scores.floor)
    expected = row_floors(floor.rows.rel_l2, apart) * np.sqrt(floor.rows.golden_sq / columns)
    return np.where(apart, np.maximum(expected, np.sqrt(device.rows.error_sq / columns)), expected)


def _overlap(rows: StageRows) -> dict[int, float]:
    """Mean share of the golden's top-k logits among the device's."""
    return {k: float(share.mean()) for k, share in topk_overlap(rows.golden, rows.device, TOP).items()}


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
    return _place(rows, int(np.where(chosen, errors.device / scale, -1.0).argmax()))


def _place(rows: StageRows, index: int) -> Place:
    """A row's labels, with the head of its largest error where the stage has a head axis."""
    head = None
    if {"N", "G"} & set(rows.named.stage.axes):
        gap = rows.device[index].astype(np.float64) - rows.golden[index].astype(np.float64)
        head = int((gap**2).sum(axis=-1).argmax())
    labels = (int(labels[index]) for labels in (rows.prompt, rows.round, rows.position))
    return Place(rows.named.name, rows.named.layer, *labels, head)
