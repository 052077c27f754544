"""Judging stages that are choices: integers that must agree, routed experts, greedy tokens."""

from __future__ import annotations

import numpy as np

from parity.compare.decisions import BUG, NOISE, SAME, TIE, Choices, draft_columns, judge, judge_experts
from parity.compare.places import labels, where
from parity.compare.report import FAIL, PASS, StageResult
from parity.compare.rows import StageRows
from parity.compare.scores import row_noise, scores_of
from parity.policy import Row


def judge_exact(rows: StageRows, row: Row, against: np.ndarray | None = None) -> StageResult:
    """Judge a stage in which no difference is allowed."""
    same = (rows.golden == rows.device).reshape(len(rows.golden), -1).all(axis=1)
    return result_of(rows, Choices(np.where(same, SAME, BUG), np.zeros(len(same))), row, against)


def judge_choices(
    rows: StageRows, scores: StageRows | None, row: Row, against: np.ndarray, apart: np.ndarray
) -> StageResult:
    """Judge tokens or experts by the golden's own scores; every difference is a bug without scores, or integer ids.

    Args:
        against: rows [R] that contradict the scores they were made from: bugs, whatever the golden's scores are.
        apart: rows [R] of which the golden's scores say nothing.
    """
    if scores is None or len(scores.golden) != len(rows.golden) or rows.device.dtype.kind not in "iu":
        return judge_exact(rows, row, against)
    noise = row_noise(scores)
    judged = (
        judge_experts(scores.golden, rows.golden, rows.device, noise)
        if row.judge == "experts"
        else _tokens(rows, scores, noise)
    )
    return result_of(rows, judged, row, against, apart)


def _tokens(rows: StageRows, scores: StageRows, noise: np.ndarray) -> Choices:
    """Tokens against the logits that they were chosen from; a draft whose column nobody knows stands for the best left."""
    if rows.named.stage.side == "drafter":
        mine = scores.golden.argmax(axis=1)
        theirs = draft_columns(scores.golden, rows.golden, rows.device)
        unknown = theirs < 0
        left = np.isin(np.arange(scores.golden.shape[1]), mine, invert=True)
        guessed = np.where(left, scores.device.astype(np.float32), -np.inf).argmax(axis=1)
        theirs = np.where(unknown, guessed, theirs)
        legal = ~unknown | left.any()
    else:
        mine, legal = rows.golden, (rows.device >= 0) & (rows.device < scores.golden.shape[1])
        theirs = np.where(legal, rows.device, 0)
    judged = judge(scores.golden, mine, theirs, noise)
    same = rows.golden == rows.device
    return Choices(np.where(same, SAME, np.where(legal, judged.verdict, BUG)), np.where(same, 0.0, judged.regret))


def result_of(
    rows: StageRows, choices: Choices, row: Row, against: np.ndarray | None = None, apart: np.ndarray | None = None
) -> StageResult:
    """What judged choices say of a stage: a bug fails it; `against` and `apart` as for `judge_choices`."""
    none = np.zeros(len(rows.golden), dtype=bool)
    against, apart = (none if one is None else one for one in (against, apart))
    wrong = against | (choices.verdict == BUG) & ~apart
    counts = {name: int(((choices.verdict == name) & ~apart & ~against).sum()) for name in (SAME, TIE, NOISE)}
    return StageResult(
        **labels(rows, row),
        verdict=FAIL if wrong.any() else PASS,
        rows_apart=int(apart.sum()),
        choices=counts | {BUG: int(wrong.sum())},
        largest_regret=float(choices.regret[~apart].max(initial=0.0)),
        against_scores=int(against.sum()),
        **(where(rows, wrong, ~apart | against, choices.regret) if wrong.any() else {}),
        note=_contradiction(rows, int(against.sum())),
    )


def _contradiction(rows: StageRows, count: int) -> str:
    """What a choice against its own scores is, in words."""
    if not count:
        return ""
    what = f"the {rows.golden.shape[1]} best" if rows.golden.ndim > 1 else "the best"
    return f"{count} of {len(rows.golden)} rows are not {what} of the {scores_of(rows.named.name)} that they were made from"
