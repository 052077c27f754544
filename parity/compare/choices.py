"""Judging stages that are choices: integers that must agree, routed experts, greedy tokens."""

from __future__ import annotations

import numpy as np

from parity.compare.decisions import BUG, NOISE, SAME, TIE, Choices, draft_columns, judge, judge_experts
from parity.compare.floor import NOISY, row_floors
from parity.compare.places import labels, place_of
from parity.compare.report import FAIL, PASS, StageResult
from parity.compare.rows import StageRows
from parity.metrics import measure
from parity.policy import Row


def judge_exact(rows: StageRows, row: Row) -> StageResult:
    """Judge a stage in which no difference is allowed."""
    same = (rows.golden == rows.device).reshape(len(rows.golden), -1).all(axis=1)
    return _choices(rows, Choices(np.where(same, SAME, BUG), np.zeros(len(same))), row)


def judge_choices(rows: StageRows, scores: StageRows | None, apart: np.ndarray, row: Row) -> StageResult:
    """Judge tokens or experts by the golden's own scores; every difference is a bug without scores, or integer ids."""
    if scores is None or len(scores.golden) != len(rows.golden) or rows.device.dtype.kind not in "iu":
        return judge_exact(rows, row)
    noise = row_noise(scores, apart)
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
        **labels(rows, row),
        verdict=FAIL if len(bugs) else PASS,
        choices=counts,
        largest_regret=float(choices.regret.max(initial=0.0)),
        first=None if first is None else place_of(rows, int(first)),
    )


def row_noise(scores: StageRows, apart: np.ndarray) -> np.ndarray:
    """RMS noise of each row's scores [R]; behind an explained router tie the row's own error.

    One row's choice is judged, so its floor is backed like a worst row's: by the noisy tenth's, not the median.
    """
    columns = scores.golden.shape[1]
    device, floor = measure(scores.golden, scores.device, ulps=False), measure(scores.golden, scores.floor, ulps=False)
    expected = row_floors(floor.rows.rel_l2, apart, NOISY) * np.sqrt(floor.rows.golden_sq / columns)
    return np.where(apart, np.maximum(expected, np.sqrt(device.rows.error_sq / columns)), expected)
