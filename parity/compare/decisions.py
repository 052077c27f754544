"""Choices instead of numbers: greedy tokens and routed experts, and whether a different one is a bug.

A choice that differs from the golden's is judged by its *regret*: the golden's own score of its own
choice minus the golden's score of the device's choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SAME, TIE, NOISE, BUG = "same", "tie", "noise", "bug"

NOISE_SIGMAS = 7.0
"""Regret that rounding explains, in multiples of the row's own noise (RMS of the bfloat16 reference's
error over that row's scores). The difference of two scores has sqrt(2) times that error; seven covers five
standard deviations of it. A golden has 50,000 such rows, so five (3.5 deviations) called a clean device wrong
once in 200 runs against its own references and once in 23 against vLLM's quieter floor: docs/calibration.md."""


@dataclass(frozen=True)
class Choices:
    """One verdict per row, and the regret of each ([R], in units of the scores)."""

    verdict: np.ndarray
    regret: np.ndarray

    def count(self, verdict: str) -> int:
        """Rows with this verdict."""
        return int((self.verdict == verdict).sum())


def ulp(values: np.ndarray) -> np.ndarray:
    """One bfloat16 ULP at these magnitudes: 2^(exponent - 7)."""
    _, exponent = np.frexp(np.maximum(np.abs(values), np.finfo(np.float32).tiny))
    return np.ldexp(1.0, exponent - 8)


def judge(scores: np.ndarray, mine: np.ndarray, theirs: np.ndarray, noise: np.ndarray) -> Choices:
    """Judge chosen columns [R] of `scores` [R, X] (the golden's): `mine` the golden's, `theirs` the device's.

    Args:
        noise: [R], RMS error of the floor over each row's scores.
    """
    regret, step = regrets(scores, mine, theirs)
    verdict = np.where(regret <= NOISE_SIGMAS * noise, NOISE, BUG)
    verdict = np.where(regret <= step, TIE, verdict)
    return Choices(np.where(mine == theirs, SAME, verdict), regret)


def ranked(scores: np.ndarray, one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two chosen columns [R] of `scores` [R, X] with the higher score first, where neither side is the truth.

    `judge` of them is symmetric: a choice below the row's best is no tie, whichever side made it.
    """
    rows = np.arange(len(scores))
    swap = scores[rows, other] > scores[rows, one]
    return np.where(swap, other, one), np.where(swap, one, other)


def regrets(scores: np.ndarray, mine: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Regret of `theirs` against `mine`, and one bfloat16 ULP of the larger of the two scores; each [R], float64."""
    rows = np.arange(len(scores))
    best, other = scores[rows, mine].astype(np.float64), scores[rows, theirs].astype(np.float64)
    return best - other, np.maximum(ulp(best), ulp(other))


def judge_experts(scores: np.ndarray, mine: np.ndarray, theirs: np.ndarray, noise: np.ndarray) -> Choices:
    """Judge sets of experts [R, X] by the best expert dropped against the worst one taken instead.

    The order within a row carries no meaning: each routing weight goes with its expert.
    """
    count = scores.shape[1]
    in_range = ((theirs >= 0) & (theirs < count)).all(axis=1)
    kept, taken = _member(mine, count), _member(np.where(in_range[:, None], theirs, mine), count)
    dropped = np.where(kept & ~taken, scores, -np.inf).argmax(axis=1)
    added = np.where(taken & ~kept, scores, np.inf).argmin(axis=1)
    same = (kept == taken).all(axis=1)
    judged = judge(scores, dropped, np.where(same, dropped, added), noise)
    legal = in_range & (taken.sum(axis=1) == kept.sum(axis=1))
    return Choices(np.where(legal, judged.verdict, BUG), judged.regret)


def _member(ids: np.ndarray, count: int) -> np.ndarray:
    """Ids [R, X] as a membership table [R, count]."""
    table = np.zeros((len(ids), count), dtype=bool)
    np.put_along_axis(table, ids, True, axis=1)
    return table


def draft_columns(scores: np.ndarray, tokens: np.ndarray, choices: np.ndarray) -> np.ndarray:
    """Columns of draft logits [R, VD] behind the device's target ids [R]; -1 where no column is known.

    The golden's own rows tell which column stands for which token (`d2t` is the checkpoint's, not ours
    to read): `tokens` are the golden's ids.
    """
    known = dict(zip(tokens.tolist(), scores.argmax(axis=1).tolist(), strict=True))
    return np.array([known.get(choice, -1) for choice in choices.tolist()], dtype=np.int64)
