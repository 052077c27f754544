"""Choices of two devices, each against the other's: neither is the truth, so both ways give the same verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parity.compare.choices import judge_exact, result_of, row_noise
from parity.compare.decisions import BUG, NOISE, SAME, TIE, Choices, draft_columns, judge, judge_experts, ranked
from parity.compare.report import StageResult
from parity.compare.rows import StageRows
from parity.policy import Row

GRAVITY = (SAME, TIE, NOISE, BUG)


def judge_pair(
    rows: StageRows,
    other: StageRows,
    scores: StageRows | None,
    own: Sequence[StageRows | None],
    row: Row,
    against: np.ndarray | None,
    apart: np.ndarray,
) -> StageResult:
    """Judge the choices of `rows` and `other` (`device` of each) where they differ, by the golden's scores of the two.

    Args:
        scores: the golden's, with the devices' difference laid on them.
        own: each device's scores, where it recorded them: which column of draft logits stands for its token.
        against: rows [R] in which either contradicts the scores it was made from.
        apart: rows [R] of which the golden's scores say nothing.
    """
    both = replace(rows, golden=other.device)
    if row.judge == "exact" or scores is None or len(scores.golden) != len(rows.golden) or _floats(rows, other):
        return judge_exact(both, row, against)
    noise = row_noise(scores)
    if row.judge == "experts":
        ways = (rows.device, other.device), (other.device, rows.device)
        return result_of(
            both, _graver(*(judge_experts(scores.golden, *way, noise) for way in ways)), row, against, apart
        )
    return result_of(both, _tokens(rows, other, scores, own, noise), row, against, apart)


def _tokens(rows: StageRows, other: StageRows, scores: StageRows, own, noise: np.ndarray) -> Choices:
    """The regret of the one that the golden scores lower; an id without a column of scores is a bug."""
    mine, theirs = (_columns(side, scores, seen) for side, seen in zip((rows, other), own, strict=True))
    legal = (mine >= 0) & (theirs >= 0)
    judged = judge(scores.golden, *ranked(scores.golden, np.where(legal, mine, 0), np.where(legal, theirs, 0)), noise)
    same = rows.device == other.device
    return Choices(np.where(same, SAME, np.where(legal, judged.verdict, BUG)), np.where(same, 0.0, judged.regret))


def _columns(rows: StageRows, scores: StageRows, own: StageRows | None) -> np.ndarray:
    """Columns of the golden's scores behind a device's ids; -1 where there is none."""
    count = scores.golden.shape[1]
    if rows.named.stage.side != "drafter":
        return np.where((rows.device >= 0) & (rows.device < count), rows.device, -1)
    known = draft_columns(scores.golden, rows.golden, rows.device)
    if own is None or len(own.device) != len(known):
        return known
    return np.where(known < 0, own.device.astype(np.float32).argmax(axis=1), known)


def _graver(one: Choices, other: Choices) -> Choices:
    """Row by row the worse verdict and the larger regret."""
    worst = np.maximum(*(np.array([GRAVITY.index(verdict) for verdict in side.verdict]) for side in (one, other)))
    return Choices(np.array(GRAVITY)[worst], np.maximum(one.regret, other.regret))


def _floats(*sides: StageRows) -> bool:
    return any(side.device.dtype.kind not in "iu" for side in sides)
