"""A choice is the best of the scores that it was made from: exactly, whatever noise would explain."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from parity.compare import compare
from parity.compare.choices import ulp
from parity.policy import read_policy
from tests.meta.dumps import Pair, clean, write
from tests.meta.plants import DRAFTS, EXPERTS, LOGITS, TOKENS, each
from tests.meta.worlds import OFFSET, STAGES, Size

SCORES = {
    "target.tokens": LOGITS,
    TOKENS: "verify.logits",
    DRAFTS: "drafter.logits",
    EXPERTS: "target.layers.0.router_logits",
}
CHOSEN = {EXPERTS: 2}
"""How many of a row's scores are chosen."""
ROWS = 3
FEW = Size(prompts=(40,), rounds=3)
UNVERIFIED = Size(prompts=(40,), rounds=3, stages=tuple(name for name in STAGES if name != TOKENS))
"""Without the tokens that say which drafts are accepted: drafts may be any."""
SHIFT = {DRAFTS: OFFSET}
"""The token of a column, less its number."""


def close(pair: Pair, stage: str, gap: float) -> np.ndarray:
    """Columns of the score behind the last chosen one, now `gap` bfloat16 ULP below it: first rows of the first tensor.

    On all sides alike, so that nothing but the choice can be wrong; the float32 truth has no ties.
    """
    last = CHOSEN.get(stage, 1) - 1
    true, place = next(each(pair.golden["float32"], SCORES[stage]))
    order, rows = np.argsort(-true[place], axis=1), np.arange(len(true[place]))[:ROWS]
    best, next_best = order[:ROWS, last], order[:ROWS, last + 1]
    for side in (*pair.golden.values(), pair.run):
        scores = next(each(side, SCORES[stage]))[0][place]
        top = true[place][rows, best].astype(ml_dtypes.bfloat16).astype(np.float32)
        below = max(gap, 0.5) if side is pair.golden["float32"] else gap
        scores[rows, best], scores[rows, next_best] = top, top - below * ulp(top)
    chosen = (place[0], stage)
    for side in (pair.golden["float32"], pair.run):
        side[0][chosen][:ROWS] = order[:ROWS, : last + 1] if stage in CHOSEN else best + SHIFT.get(stage, 0)
    return np.stack([*order[:ROWS, :last].T, next_best], axis=1)


def other(pair: Pair, stage: str, columns: np.ndarray) -> None:
    """The device chooses these columns in the first rows."""
    tensors, place = next(each(pair.run, stage))
    tensors[place][:ROWS] = columns if stage in CHOSEN else columns[:, 0] + SHIFT.get(stage, 0)


def lift(pair: Pair, stage: str, columns: np.ndarray) -> None:
    """The device's own score of the next best is above the best one's."""
    scores, place = next(each(pair.run, SCORES[stage]))
    rows, lifted = np.arange(ROWS), columns[:, -1]
    scores[place][rows, lifted] += 3 * ulp(scores[place][rows, lifted].astype(np.float32)).astype(scores[place].dtype)


@pytest.fixture
def judged(tmp_path):
    def judge(pair: Pair, *forced: str, mode: str = "chained", ranks: int = 1):
        pair.golden["bfloat16.local"] = pair.golden["bfloat16"]
        golden, run = write(pair, tmp_path / "pair")
        for place in [place for place in run.rows if place[3] == LOGITS]:
            run.stored(*place)  # as it is merged from the ranks
            run.parts[place] = [
                run.parts[place][0].model_copy(update={"rank": n, "sharding": "sum"}) for n in range(ranks)
            ]
        case = run.manifest.case
        case = case.model_copy(update={"forced": (*case.forced, *forced), "mode": mode})
        run.manifest = run.manifest.model_copy(update={"case": case})
        report = compare(golden, run, read_policy(None, "bfloat16"))
        return report, {one.stage: one for one in report.stages}

    return judge


@pytest.mark.parametrize("stage", SCORES)
def test_the_next_best_within_noise_is_a_failure_of_the_choice(stage, judged):
    pair = clean(UNVERIFIED if stage == DRAFTS else FEW)
    other(pair, stage, close(pair, stage, gap=1))
    report, stages = judged(pair)
    assert [one.stage for one in report.stages if one.verdict != "pass"] == [stage]
    assert report.exit_code == 1 and report.first.stage == stage
    said = stages[stage]
    assert "own" in said.marks and said.against_scores == ROWS and said.choices["bug"] == ROWS
    assert f"{ROWS} of {said.rows} rows are not" in said.note and SCORES[stage] in said.note


@pytest.mark.parametrize("stage", SCORES)
def test_of_equal_scores_either_may_be_chosen(stage, judged):
    pair = clean(UNVERIFIED if stage == DRAFTS else FEW)
    other(pair, stage, close(pair, stage, gap=0))
    report, stages = judged(pair)
    assert report.verdict == "pass" and stages[stage].choices["tie"] >= ROWS


@pytest.mark.parametrize("stage", SCORES)
@pytest.mark.parametrize("obeys", [True, False])
def test_where_a_local_run_forced_the_scores_the_choice_is_made_from_the_goldens(obeys, stage, judged):
    """The device's own scores have the other order; what it was given is the golden's."""
    pair = clean(UNVERIFIED if stage == DRAFTS else FEW)
    columns = close(pair, stage, gap=1)
    lift(pair, stage, columns)
    if not obeys:
        other(pair, stage, columns)
    forced = SCORES[stage].replace("layers.0", "layers.{l}")
    _, local = judged(pair, forced, mode="local")
    assert local[stage].against_scores == (0 if obeys else ROWS)


def test_a_chained_run_forces_no_scores_whatever_it_says(judged):
    pair = clean(FEW)
    lift(pair, EXPERTS, close(pair, EXPERTS, gap=1))
    _, stages = judged(pair, "target.layers.{l}.router_logits")
    assert stages[EXPERTS].against_scores == ROWS


def test_a_draft_whose_column_nobody_knows_is_wrong_only_where_a_known_one_is_better(judged):
    pair = clean(UNVERIFIED)
    columns = close(pair, DRAFTS, gap=1)
    tensors, place = next(each(pair.run, DRAFTS))
    tensors[place][0] = OFFSET + 599 - int(columns[0, 0] == 599)  # a token that the golden never drafts
    _, stages = judged(pair)
    assert stages[DRAFTS].against_scores == 1


def test_scores_that_are_no_numbers_convict_no_choice(judged):
    pair = clean(FEW)
    tensors, place = next(each(pair.run, LOGITS))
    tensors[place][0, 5] = np.nan
    report, stages = judged(pair)
    assert {one.kind for one in report.findings} == {"non-finite"} and stages["target.tokens"].verdict == "pass"


def test_scores_that_rounding_among_many_ranks_may_turn_check_no_choice(judged):
    pair = clean(FEW)
    other(pair, "target.tokens", close(pair, "target.tokens", gap=1))
    report, stages = judged(pair, ranks=64)
    assert report.exit_code == 3 and [one.stage for one in report.stages if one.verdict != "pass"] == ["target.tokens"]
    said = stages["target.tokens"]
    assert f"{said.rows} of {said.rows} rows are not checked against their own scores" in said.note
