"""Whole numbers by a rule of their own, ranks by row, and numbers of the round before."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.facts import Facts
from parity.diagnose.components import components
from parity.diagnose.components.by_rule import in_rules, round_late
from parity.diagnose.components.chosen import Chosen, rules_of_one
from parity.diagnose.components.chosen_sets import rules_of_sets
from tests.meta.dumps import clean, write
from tests.meta.plants import POSITIONS, values
from tests.meta.worlds import Size

ROUNDS, K = 5, 4
STARTS = np.array([131, 134, 139, 141, 146])
ROUND = np.repeat(np.arange(1, ROUNDS + 1), K)
INDEX = np.tile(np.arange(K), ROUNDS)
POSITION = np.repeat(STARTS, K) + INDEX
COMMITTED = np.ones(ROUNDS * K, np.int64)
FACTS = Facts(
    prompt=np.zeros_like(ROUND),
    round=ROUND,
    position=POSITION,
    index=INDEX,
    count=np.full_like(ROUND, K),
    prompts=np.full_like(ROUND, 130),
    committed=COMMITTED,
    side="drafter",
)
MASKED = INDEX >= 1
DEPTH = INDEX - 1
FIRST = POSITION - DEPTH


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (DEPTH, "the number of the masked row"),
        (DEPTH + 1, "the row of the pass"),
        (-(-FIRST // 16) * 16 + DEPTH, "what is meant in the first masked row, up to the next multiple of 16,"),
        (POSITION % 32, "what is meant in the first masked row modulo 32 plus the number of the masked row"),
        (POSITION // 2, "what is meant divided by 2"),
        (POSITION - INDEX + 2 * INDEX, "what is meant plus the row of the pass"),
    ],
)
def test_the_rule_is_said(found, says):
    assert in_rules(FACTS.of_rows(MASKED), POSITION[MASKED], found[MASKED]).startswith(says)


def test_numbers_at_random_and_few_ones_follow_no_rule():
    drawn = np.random.default_rng(0).integers(0, 200, len(POSITION))
    assert in_rules(FACTS.of_rows(MASKED), POSITION[MASKED], drawn[MASKED]) == ""
    few = MASKED & (ROUND == 1)
    assert in_rules(FACTS.of_rows(few), POSITION[few], DEPTH[few]) == ""


def test_numbers_that_are_few_and_small_would_follow_some_rule_by_chance():
    """Three of these 300 do."""
    few = FACTS.of_rows(np.random.default_rng(3).permutation(len(POSITION))[:5])
    drawn = [np.random.default_rng(seed).integers(0, 4, 5) for seed in range(300)]
    assert {in_rules(few, few.position, one) for one in drawn} == {""}


def test_depth_is_known_of_masked_rows_alone_and_facts_are_taken_row_by_row():
    assert FACTS.known("depth").tolist() == [-1, 0, 1, 2] * ROUNDS
    some = FACTS.of_rows(MASKED)
    assert (some.position == POSITION[MASKED]).all() and some.side == "drafter"


def test_numbers_of_the_round_before_are_told_where_all_rows_agree():
    own = FACTS.of_rows(INDEX == 0)
    right = np.array([3, 5, 2, 2, 4])
    late = np.array([3, 3, 5, 2, 2])
    assert round_late(own, right, late)
    assert not round_late(own, right, np.array([3, 3, 5, 2, 4]))
    assert not round_late(own, right, right)


SCORES = np.random.default_rng(1).normal(size=(ROUNDS * K, 50))
ORDER = np.argsort(-SCORES, axis=1)


def said(theirs: np.ndarray) -> list[str]:
    ids = np.arange(50)
    chosen = Chosen(SCORES, ORDER[:, 0], theirs, (ORDER[:, 0], theirs), ids, INDEX)
    return list(rules_of_one(chosen, False))


def test_a_rank_of_its_own_for_each_row_of_a_pass_is_told():
    by_row = np.take_along_axis(ORDER, INDEX[:, None], axis=1)[:, 0]
    assert "by row of the pass the choice of rank 1, 2, 3, 4" in said(by_row)
    drawn = np.random.default_rng(2).integers(0, 50, len(SCORES))
    assert not [one for one in said(drawn) if one.startswith("by row")]


def test_a_choice_that_is_never_that_of_the_row_before_is_told():
    scores = SCORES.copy()
    scores[1::2, :] = scores[::2, :] + 0.01 * SCORES[1::2, :]  # every second row chooses what the one before does
    order = np.argsort(-scores, axis=1)
    taken = np.where(INDEX % 2 == 1, order[:, 1], order[:, 0])
    chosen = Chosen(scores, order[:, 0], taken, (order[:, 0], taken), np.arange(50), INDEX)
    assert "the best that is not the choice of the row before" in list(rules_of_one(chosen, False))


def test_the_best_of_some_experts_alone_is_told():
    scores = SCORES[:, :8]
    golden = np.argsort(-scores, axis=1)[:, :2]
    device = np.argsort(-scores[:, 2:6], axis=1)[:, :2] + 2
    assert "the best of experts 2 to 5 alone" in list(
        rules_of_sets(scores, golden, device, True, np.zeros(len(scores), int))
    )


@pytest.mark.parametrize(("rows", "says"), [([7, 9], "-256 wherever it differs"), ([7], "")])
def test_two_different_numbers_that_are_off_alike_tell_by_how_much(rows, says, tmp_path):
    pair = clean(Size(prompts=(40,)))
    values(lambda x: x - 256 * np.isin(np.arange(len(x)), rows) if len(x) > 9 else x, POSITIONS)(pair)
    golden, run = write(pair, tmp_path)
    assert "".join(str(one) for one in components(golden, run, POSITIONS)).startswith(says)
