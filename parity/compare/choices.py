"""Choices instead of numbers: greedy tokens and routed experts, and whether a different one is a bug."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.compare.places import labels, where
from parity.compare.report import FAIL, PASS, StageResult
from parity.compare.rows import StageRows, same_rows
from parity.compare.scores import NOISE_SIGMAS, members, row_noise, scores_of
from parity.compare.vocabulary import draft_vocabulary
from parity.policy import Row
from parity.stages import TARGET_LOGITS, VERIFY_LOGITS

SAME, TIE, NOISE, BUG = "same", "tie", "noise", "bug"


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
    return np.asarray(np.ldexp(1.0, exponent - 8))


def judge(
    scores: np.ndarray, mine: np.ndarray, theirs: np.ndarray, noise: np.ndarray, imagined: bool = False
) -> Choices:
    """Judge chosen columns [R] of `scores` [R, X] (the golden's): `mine` the golden's, `theirs` the device's.

    Args:
        noise: [R], RMS error of the floor over each row's scores.
        imagined: `mine` are a counterfactual's, which may choose against its scores: a better one is another one too.
    """
    apart, step = regrets(scores, mine, theirs)
    regret = np.abs(apart) if imagined else apart
    verdict = np.where(regret <= NOISE_SIGMAS * noise, NOISE, BUG)
    verdict = np.where(regret <= step, TIE, verdict)
    return Choices(np.where(mine == theirs, SAME, verdict), regret)


def ranked(scores: np.ndarray, mine: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two chosen columns [R] of `scores` [R, X] with the higher score first, where neither side is the truth.

    `judge` of them is symmetric: a choice below the row's best is no tie, whichever side made it.
    """
    rows = np.arange(len(scores))
    swap = scores[rows, theirs] > scores[rows, mine]
    return np.where(swap, theirs, mine), np.where(swap, mine, theirs)


def regrets(scores: np.ndarray, mine: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Regret of `theirs` against `mine`, and one bfloat16 ULP of the larger of the two scores; each [R], float64."""
    rows = np.arange(len(scores))
    best, other = scores[rows, mine].astype(np.float64), scores[rows, theirs].astype(np.float64)
    return best - other, np.maximum(ulp(best), ulp(other))


def judge_experts(
    scores: np.ndarray, mine: np.ndarray, theirs: np.ndarray, noise: np.ndarray, imagined: bool = False
) -> Choices:
    """Judge sets of experts [R, X] by the best expert dropped against the worst one taken instead.

    The order within a row carries no meaning: each routing weight goes with its expert. `imagined` as for `judge`.
    """
    count = scores.shape[1]
    in_range = ((theirs >= 0) & (theirs < count)).all(axis=1)
    kept, taken = members(mine, count), members(np.where(in_range[:, None], theirs, mine), count)
    dropped = np.where(kept & ~taken, scores, -np.inf).argmax(axis=1)
    added = np.where(taken & ~kept, scores, np.inf).argmin(axis=1)
    same = (kept == taken).all(axis=1)
    judged = judge(scores, dropped, np.where(same, dropped, added), noise, imagined)
    legal = in_range & (taken.sum(axis=1) == kept.sum(axis=1))
    return Choices(np.where(legal, judged.verdict, BUG), judged.regret)


def in_vocabulary(rows: StageRows) -> np.ndarray:
    """Which ids [R] are of the target's vocabulary, as wide as the golden's logits of it."""
    shapes = {place[3]: row.full_shape for place, row in rows.source.rows.items()} if rows.source is not None else {}
    size = next((shapes[stage][-1] for stage in (TARGET_LOGITS, VERIFY_LOGITS) if stage in shapes), np.inf)
    return np.asarray((rows.device >= 0) & (rows.device < size))


Replay = Callable[[Choices], Choices]
"""What becomes of choices that random numbers made."""


def as_they_are(choices: Choices) -> Choices:
    """No random number made them."""
    return choices


def judge_exact(
    rows: StageRows, row: Row, against: np.ndarray | None = None, replay: Replay = as_they_are
) -> StageResult:
    """Judge a stage in which no difference is allowed, but for what `replay` allows."""
    same = same_rows(rows.golden, rows.device)
    return result_of(rows, replay(Choices(np.where(same, SAME, BUG), np.zeros(len(same)))), row, against)


def judge_choices(
    rows: StageRows,
    scores: StageRows | None,
    row: Row,
    against: np.ndarray,
    excluded: np.ndarray,
    replay: Replay = as_they_are,
) -> StageResult:
    """Judge tokens or experts by the golden's own scores; every difference is a bug without scores, or integer ids.

    Args:
        against: rows [R] that contradict the scores they were made from: bugs, whatever the golden's scores are.
        excluded: rows [R] of which the golden's scores say nothing.
        replay: judges the choices that random numbers made.
    """
    if scores is None or len(scores.golden) != len(rows.golden) or rows.device.dtype.kind not in "iu":
        return judge_exact(rows, row, against, replay)
    noise = row_noise(scores)
    judged = (
        judge_experts(scores.golden, rows.golden, rows.device, noise, _imagined(rows))
        if row.judge == "experts"
        else _tokens(rows, scores, noise)
    )
    return result_of(rows, replay(judged), row, against, excluded)


def _imagined(rows: StageRows) -> bool:
    """Whether the golden that the rows are of is a counterfactual."""
    return rows.source is not None and rows.source.imagined


def _tokens(rows: StageRows, scores: StageRows, noise: np.ndarray) -> Choices:
    """Tokens by the logits they were chosen from; a draft whose column nobody knows stands for the best one left.

    Nobody knows it where the golden has neither its drafter's vocabulary nor its checkpoint.
    """
    if rows.named.stage.side == "drafter":
        mine = scores.golden.argmax(axis=1)
        vocabulary = draft_vocabulary(rows.source, scores, rows)
        theirs = vocabulary.columns(rows.device)
        unknown = theirs < 0
        left = (vocabulary.tokens < 0) & np.isin(np.arange(scores.golden.shape[1]), mine, invert=True)
        guessed = np.where(left, scores.device.astype(np.float32), -np.inf).argmax(axis=1)
        theirs = np.where(unknown, guessed, theirs)
        legal = (~unknown | left.any()) & in_vocabulary(rows)
    else:
        mine, legal = rows.golden, (rows.device >= 0) & (rows.device < scores.golden.shape[1])
        theirs = np.where(legal, rows.device, 0)
    judged = judge(scores.golden, mine, theirs, noise, _imagined(rows))
    same = rows.golden == rows.device
    return Choices(np.where(same, SAME, np.where(legal, judged.verdict, BUG)), np.where(same, 0.0, judged.regret))


def result_of(
    rows: StageRows, choices: Choices, row: Row, against: np.ndarray | None = None, excluded: np.ndarray | None = None
) -> StageResult:
    """What judged choices say of a stage: a bug fails it; `against` and `excluded` as for `judge_choices`."""
    none = np.zeros(len(rows.golden), dtype=bool)
    against = none if against is None else against
    excluded = none if excluded is None else excluded
    wrong = against | (choices.verdict == BUG) & ~excluded
    judged = ~excluded | against
    among = judged if (judged & ~wrong).any() else ~none  # where nothing else is judged, which rows differ at all
    unclear = np.isin(choices.verdict, (TIE, NOISE)) & ~wrong
    counts = {name: int(((choices.verdict == name) & ~excluded & ~against).sum()) for name in (SAME, TIE, NOISE)}
    return StageResult(
        **labels(rows, row),
        verdict=FAIL if wrong.any() else PASS,
        rows_apart=int(excluded.sum()),
        choices=counts | {BUG: int(wrong.sum())},
        largest_regret=float(choices.regret[~excluded].max(initial=0.0)),
        against_scores=int(against.sum()),
        **(where(rows, wrong, among, choices.regret, unclear=unclear) if wrong.any() else {}),
        note=_contradiction(rows, int(against.sum())),
    )


def _contradiction(rows: StageRows, count: int) -> str:
    """What a choice against its own scores is, in words."""
    if not count:
        return ""
    best = f"the {rows.golden.shape[1]} best" if rows.golden.ndim > 1 else "the best"
    scores = scores_of(rows.named.name)
    return f"{count} of {len(rows.golden)} rows are not {best} of the {scores} that they were made from"


GRAVITY = (SAME, TIE, NOISE, BUG)


def judge_pair(
    rows: StageRows,
    other: StageRows,
    scores: StageRows | None,
    own: Sequence[StageRows | None],
    row: Row,
    against: np.ndarray | None,
    excluded: np.ndarray,
) -> StageResult:
    """Judge the choices of `rows` and `other` (`device` of each) where they differ, by the golden's scores of the two.

    Args:
        scores: the golden's, with the devices' difference laid on them.
        own: each device's scores, where it recorded them: which column of draft logits stands for its token.
        against: rows [R] in which either contradicts the scores it was made from.
        excluded: rows [R] of which the golden's scores say nothing.
    """
    both = replace(rows, golden=other.device)
    if row.judge == "exact" or scores is None or len(scores.golden) != len(rows.golden) or _floats(rows, other):
        return judge_exact(both, row, against)
    noise = row_noise(scores)
    if row.judge == "experts":
        ways = (rows.device, other.device), (other.device, rows.device)
        return result_of(
            both, _graver(*(judge_experts(scores.golden, *way, noise) for way in ways)), row, against, excluded
        )
    return result_of(both, _tokens_of_both(rows, other, scores, own, noise), row, against, excluded)


def _tokens_of_both(
    rows: StageRows, other: StageRows, scores: StageRows, own: Sequence[StageRows | None], noise: np.ndarray
) -> Choices:
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
    vocabulary = draft_vocabulary(rows.source, scores, rows)
    known = vocabulary.columns(rows.device)
    if vocabulary.whole or own is None or len(own.device) != len(known):
        return known
    guessed = own.device.astype(np.float32).argmax(axis=1)
    return np.where((known < 0) & in_vocabulary(rows), guessed, known)


def _graver(first: Choices, second: Choices) -> Choices:
    """Row by row the worse verdict and the larger regret."""
    ranks = (np.array([GRAVITY.index(verdict) for verdict in side.verdict]) for side in (first, second))
    return Choices(np.array(GRAVITY)[np.maximum(*ranks)], np.maximum(first.regret, second.regret))


def _floats(*sides: StageRows) -> bool:
    return any(side.device.dtype.kind not in "iu" for side in sides)
