"""Judging logits of which the best are kept alone: these columns and the log-sum-exp of all, and choices among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from parity.compare.choices import ulp
from parity.compare.numbers import judge_numbers
from parity.compare.records import Held, kept_ids, labelled
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, StageResult, join
from parity.compare.rows import StageRows
from parity.compare.scores import NOISE_SIGMAS, row_noise
from parity.compare.structure import Finding
from parity.compare.vocabulary import draft_vocabulary
from parity.golden.keeping import FLOOR, Record, best_of, log_sum_exp
from parity.golden.views import DumpView
from parity.policy import Row
from parity.stages import Named

COLUMNS = "columns"
"""What is not judged where the best logits are kept alone: the others, but for their share in the log-sum-exp."""


def judge_best(
    golden: DumpView,
    named: Named,
    tensors: Sequence[Held],
    excluded: Callable[[StageRows], np.ndarray],
    row: Row,
    without: Sequence[str],
) -> tuple[StageResult, list[Finding]]:
    """Judge the golden's best logits and the log-sum-exp as if a row held these numbers and no other.

    Args:
        excluded, without: as for `parity.compare.sketched.judge_sketched`.
    """
    parts = [_columns(one) for one in tensors]
    true, device, floor = (np.concatenate([part[side] for part in parts]) for side in range(3))
    rows = StageRows(named, true, device, floor, *labelled(tensors), golden)
    result, findings = judge_numbers(rows, excluded(rows), row)
    figures = {name: value for name, value in result.x.items() if not name.startswith("top")}
    count = true.shape[1] - 1
    judged = replace(
        result,
        x=figures | {"kl_at_least": divergence(true, device)},
        topk={},
        evidence=f"top {count} and log-sum-exp",
        not_judged=(COLUMNS,),
    )
    if result.verdict in (FAIL, NOT_JUDGED) or COLUMNS in without:
        return judged, findings
    note = (
        f"{tensors[0].shape[0] - count} of {tensors[0].shape[0]} columns not judged: a sketch beside the best settles "
    )
    note += f"it, --without {COLUMNS} leaves it out"
    return replace(judged, verdict=join([result.verdict, INCONCLUSIVE]), note=result.note or note), findings


def divergence(golden: np.ndarray, device: np.ndarray) -> float:
    """The least that the largest KL divergence of a row can be, of the best logits with the log-sum-exp behind them.

    What is not kept counts as one token: the divergence of a coarser distribution is never larger.
    """
    p, q = (np.exp(np.minimum(side[:, :-1] - side[:, -1:], 0.0)) for side in (golden, device))
    p, q = (np.concatenate([side, np.maximum(1 - side.sum(axis=1, keepdims=True), 1e-12)], axis=1) for side in (p, q))
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log(p / np.maximum(q, 1e-300)), 0.0)
    return float(np.nan_to_num(terms.sum(axis=1), nan=np.inf).max(initial=0.0))


def _columns(one: Held) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Golden, device and floor at the golden's best, and the log-sum-exp: float64 [R, k + 1] each."""
    ids = kept_ids(one)
    golden, device = (_at(side, ids) for side in one.sides[:2])
    floor = one.sides[2]
    if not floor.form:
        return golden, device, _at(floor, ids)
    numbers = floor.rows.astype(np.float64)
    return golden, device, np.concatenate([numbers[:, FLOOR : FLOOR + ids.shape[1]], numbers[:, -1:]], axis=1)


def _at(side: Record, ids: np.ndarray) -> np.ndarray:
    """Logits of these columns; of one that is not kept the least of those that are, which it is not above."""
    if not side.form:
        values = np.take_along_axis(side.rows.astype(np.float64), ids, axis=1)
        return np.concatenate([values, log_sum_exp(side.rows)[:, None]], axis=1)
    own, values, total = best_of(side)
    same = own[:, None, :] == ids[:, :, None]
    found = np.where(same.any(axis=2), (same * np.nan_to_num(values)[:, None, :]).sum(axis=2), values[:, -1:])
    return np.concatenate([found, total[:, None]], axis=1)


def unknown_choices(rows: StageRows, scores: StageRows) -> int:
    """Rows of which the device chose a token that the golden keeps no logit of, where the least one that it keeps is
    within noise or a tie of the best: nobody can tell whether that is a bug."""
    if scores.known is None or rows.golden.ndim != 1 or len(rows.golden) != len(scores.golden):
        return 0
    columns = rows.device
    if rows.named.stage.side == "drafter":
        columns = draft_vocabulary(rows.source, scores, rows).columns(rows.device)
    kept = (scores.known == columns[:, None]).any(axis=1)
    best, least = scores.golden.max(axis=1), np.take_along_axis(scores.golden, scores.known, axis=1).min(axis=1)
    near = best - least <= np.maximum(NOISE_SIGMAS * row_noise(scores), ulp(best))
    return int((~kept & near & (rows.golden != rows.device)).sum())
