"""The rows of one stage by its policy row: numbers, choices, or the choices of two devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from parity.compare.basis import Basis
from parity.compare.choices import NOISE, as_they_are, judge_choices, judge_exact, judge_pair
from parity.compare.evidence import lack_of_scores
from parity.compare.kept import unscored, with_choices
from parity.compare.numbers import judge_numbers
from parity.compare.report import INCONCLUSIVE, StageResult, join
from parity.compare.rows import StageRows, stage_rows
from parity.compare.scores import contradicting, paired, scores_of
from parity.compare.structure import Finding, check_values
from parity.errors import UsageError
from parity.golden.views import DumpView, TrustedGolden
from parity.metrics import measure
from parity.policy import Row
from parity.stages import Named

if TYPE_CHECKING:
    from parity.compare.between import DeviceDifference
    from parity.compare.sampling.judging import Replayed


def judge_rows(
    golden: TrustedGolden, run: DumpView, rows: StageRows, row: Row, on: Basis, without: Sequence[str]
) -> tuple[StageResult, list[Finding]]:
    """The rows of one stage by its policy row: choices of two devices, what is exact, numbers, or choices by scores."""
    named, scored = rows.named, scores_of(rows.named.name)
    choice = scored in golden.declared
    if named.stage.exact and two_devices(run):
        return _pair(golden, run, rows, row, on), []
    replay = _replayed(golden, run, rows) if choice else None
    if row.judge == "exact" or (scored and not choice):  # a family whose drafts no scores choose
        against = _against(golden, run, rows, replay) if choice else None
        judged = judge_exact(rows, row, against, replay.settled if replay else as_they_are)
        return replay.told(judged, rows) if replay else judged, [] if named.stage.exact else _broken(rows)
    if not named.stage.exact:
        if row.judge not in ("noise", "relative", "none"):
            raise UsageError(f"policy row {row.stages!r} judges {named.name} by {row.judge}; that is for choices")
        return judge_numbers(rows, on.excluded(rows), row)
    return _choices(golden, run, rows, row, on, without, replay), []


def _choices(
    golden: TrustedGolden,
    run: DumpView,
    rows: StageRows,
    row: Row,
    on: Basis,
    without: Sequence[str],
    replay: Replayed | None,
) -> StageResult:
    """Rows of choices beside the scores behind them."""
    named = rows.named
    if row.judge not in ("experts", "decision"):
        raise UsageError(f"policy row {row.stages!r} judges {named.name} by {row.judge}; that is for numbers")
    scores = _scores(on.golden, run, named)
    count, left = len(rows.golden), 0
    if scores is not None and (golden.keeps or run.keeps):
        there, left = unscored(rows, scores)
        rows = rows if len(there) == count else rows.take(there)
    if scores is not None and len((common := paired(rows, scores))[0].golden) == len(rows.golden):
        scores = common[1]
    against, settled = _against(golden, run, rows, replay), replay.settled if replay else as_they_are
    judged = _explained(judge_choices(rows, scores, row, against, on.undecided(rows, scores), settled), scores)
    judged = with_choices(judged, count, left, _unknown(rows, scores) if scores else 0, without)
    return replay.told(judged, rows) if replay else judged


def _replayed(golden: TrustedGolden, run: DumpView, rows: StageRows) -> Replayed | None:
    """A replay of the choices in these rows; None where nothing is drawn."""
    if not golden.manifest.case.draws:
        return None
    from parity.compare.sampling.judging import replayed

    return replayed(golden, run, rows)


def _unknown(rows: StageRows, scores: StageRows) -> int:
    """Rows of which nobody can tell whether the choice is a bug: the golden keeps no score of it."""
    if scores.known is None:
        return 0
    from parity.compare.best_logits import unknown_choices

    return unknown_choices(rows, scores)


def _against(golden: TrustedGolden, run: DumpView, rows: StageRows, replay: Replayed | None) -> np.ndarray:
    """Rows [R] that contradict what they were made from: the best score, or what a random number calls for."""
    against = contradicting(golden, run, rows)
    return against if replay is None else np.where(replay.sampled, replay.wrong, against)


def two_devices(run: DumpView) -> TypeGuard[DeviceDifference]:
    """Whether a run is the difference of two."""
    return len(run.sides) > 1


def _pair(golden: TrustedGolden, run: DeviceDifference, rows: StageRows, row: Row, on: Basis) -> StageResult:
    """A stage of choices of two devices, each one's own against the other's."""
    if row.judge not in ("experts", "decision", "exact"):
        raise UsageError(f"policy row {row.stages!r} judges {rows.named.name} by {row.judge}; that is for numbers")
    chosen = scores_of(rows.named.name) in golden.declared
    scored = row.judge != "exact" and chosen
    mine, theirs = (stage_rows(golden, side, rows.named) for side in run.alone())
    if mine is None or theirs is None:
        raise ValueError(f"the two devices have rows of {rows.named.name}, but not each its own")
    scores = _scores(golden, run, rows.named) if scored else None
    own = [None if scores is None else _scores(golden, side, rows.named) for side in run.alone()]
    against = contradicting(golden, run, rows) if chosen else None
    return _explained(judge_pair(mine, theirs, scores, own, row, against, on.excluded(rows)), scores)


def _broken(rows: StageRows) -> list[Finding]:
    """What is wrong with numbers of which no difference is allowed, whatever they are."""
    return check_values(rows, *(measure(rows.golden, side, row_axes=1) for side in (rows.device, rows.noise_floor)))


def _explained(result: StageResult, scores: StageRows | None) -> StageResult:
    """A result of choices, inconclusive where noise explains some and would explain any."""
    if scores is None or not result.choices.get(NOISE):
        return result
    missing = lack_of_scores(measure(scores.golden, scores.noise_floor, row_axes=1))
    return replace(result, verdict=join([result.verdict, INCONCLUSIVE]), note=missing.note) if missing else result


def _scores(golden: TrustedGolden, run: DumpView, named: Named) -> StageRows | None:
    """The scores behind a stage of choices: the golden's, and the run's where it recorded them."""
    scores = scores_of(named.name)
    if scores is None or scores not in golden.manifest.stages:
        return None
    if scores in run.manifest.stages:
        return stage_rows(golden, run, golden.declared[scores])
    return stage_rows(golden, golden, golden.declared[scores], device="float32", mode=run.manifest.case.mode)
