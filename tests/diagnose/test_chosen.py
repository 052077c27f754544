"""The rule by which a device chose is told from its choices and the golden's scores."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from parity.diagnose.components.chosen import Chosen, rules_of_one
from parity.diagnose.components.chosen_sets import rules_of_sets

ROWS, WIDTH = 60, 200
SCORES = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
BEST = SCORES.argmax(axis=1)
TOKENS = np.arange(WIDTH) + np.arange(WIDTH) // 7


def without(first, last):
    scores = SCORES.copy()
    scores[:, first:last] = -np.inf
    return scores.argmax(axis=1)


def chosen(columns, ids=None, tokens=TOKENS):
    ids = tokens[columns] if ids is None else ids
    theirs = np.array([list(tokens).index(one) if one in tokens else -1 for one in ids])
    return Chosen(SCORES, BEST, theirs, (tokens[BEST], ids), tokens, np.zeros(len(BEST), int))


def in_bfloat16(ids):
    return ids.astype(ml_dtypes.bfloat16).astype(np.int64)


NEXT = np.argsort(-SCORES, axis=1)[:, 1]
SWAPPED = np.where(BEST < 100, BEST + 100, BEST - 100)
LATE = np.minimum(BEST + 8, WIDTH - 1)

RULES = {
    f"columns {BEST[(BEST >= 64) & (BEST < 128)].min()} to": chosen(without(64, 128)),
    "the best of columns": chosen(60 + SCORES[:, 60:140].argmax(axis=1)),
    "the choice of rank 2": chosen(NEXT),
    "the largest magnitude, whatever its sign": chosen(np.abs(SCORES).argmax(axis=1)),
    "the worst, not the best": chosen(SCORES.argmin(axis=1)),
    "the id modulo 128": chosen(BEST, TOKENS[BEST] % 128),
    "the column of the scores": chosen(BEST, BEST),
    "the id in bfloat16": chosen(BEST, in_bfloat16(300 + BEST), 300 + np.arange(WIDTH)),
    "the id by the offset of 1 columns behind": chosen(
        BEST,
        BEST + np.array([0, 5, 1, 9, 3, 7, 2, 8])[(np.minimum(BEST + 1, WIDTH - 1)) % 8],
        np.arange(WIDTH) + np.array([0, 5, 1, 9, 3, 7, 2, 8])[np.arange(WIDTH) % 8] * 1,
    ),
    "the column is off by range: +100 from": chosen(SWAPPED),
}


@pytest.mark.parametrize("says", RULES)
def test_a_rule_that_makes_all_choices_is_said(says):
    assert next(rules_of_one(RULES[says], True), "").startswith(says)


def test_columns_that_bfloat16_does_not_hold_are_said():
    best, tokens = np.arange(250, 550, 5), 1 + 2 * np.arange(600)
    theirs = in_bfloat16(best)
    rules = rules_of_one(
        Chosen(np.zeros((60, 600)), best, theirs, (tokens[best], tokens[theirs]), tokens, np.zeros(60, int)), True
    )
    assert next(rules) == "the column in bfloat16"


def test_choices_at_random_follow_no_rule():
    columns = np.random.default_rng(1).integers(0, WIDTH, ROWS)
    assert not list(rules_of_one(chosen(columns), True))
    assert not list(rules_of_one(chosen(np.where(np.arange(ROWS) < 2, NEXT, BEST)), True)), "too few to tell"


EXPERTS = SCORES[:, :6]
TOP = np.argsort(-EXPERTS, axis=1)[:, :2]


def top_without(one):
    scores = EXPERTS.copy()
    scores[:, one] = -np.inf
    return np.argsort(-scores, axis=1)[:, :2]


SETS = {
    "expert 3 is never chosen": top_without(3),
    "one expert is chosen twice": np.stack([TOP[:, 0], TOP[:, 0]], axis=1),
    "the best of each of 2 groups of experts": np.stack(
        [EXPERTS[:, :3].argmax(axis=1), EXPERTS[:, 3:].argmax(axis=1) + 3], axis=1
    ),
    "the experts of rank 1, 3": np.argsort(-EXPERTS, axis=1)[:, [0, 2]],
    "expert 5 is always chosen": np.stack([np.where(TOP[:, 0] == 5, TOP[:, 1], TOP[:, 0]), np.full(ROWS, 5)], axis=1),
}


@pytest.mark.parametrize("says", SETS)
def test_a_rule_of_sets_is_said(says):
    assert says in list(rules_of_sets(EXPERTS, TOP, SETS[says], True, np.zeros(len(EXPERTS), int)))


def test_right_sets_and_random_ones_follow_no_rule():
    assert not list(rules_of_sets(EXPERTS, TOP, TOP[:, ::-1], True, np.zeros(len(EXPERTS), int)))
    order = np.random.default_rng(2).permuted(np.tile(np.arange(6), (ROWS, 1)), axis=1)[:, :2]
    assert not list(rules_of_sets(EXPERTS, TOP, order, True, np.zeros(len(EXPERTS), int)))


def test_another_rank_of_some_rows_is_no_rule_where_nothing_tells_which():
    """Where two scores are close the third expert takes the second one's place, whatever the reason."""
    third = np.argsort(-EXPERTS, axis=1)[:, [0, 2]]
    ranked = -np.sort(-EXPERTS, axis=1)
    some = np.where((ranked[:, 1] - ranked[:, 2] < np.median(ranked[:, 1] - ranked[:, 2]))[:, None], third, TOP)
    assert "the experts of rank 1, 3" in list(rules_of_sets(EXPERTS, TOP, some, True, np.zeros(len(EXPERTS), int)))
    assert not list(rules_of_sets(EXPERTS, TOP, some, False, np.zeros(len(EXPERTS), int)))
    half = chosen(np.where(np.arange(ROWS) % 2, NEXT, BEST))
    assert "the choice of rank 2" in " ".join(rules_of_one(half, True))
    assert not list(rules_of_one(half, False))


def repeating(of_best: bool, ever: bool) -> np.ndarray:
    """The choices of rounds of four rows that look back to what was best, or chosen, in the row before or in all."""
    ranked, made = np.argsort(-PAIRS, axis=1), []
    for row in range(len(PAIRS)):
        seen = made[row - row % 4 : row] if ever else made[row - 1 : row] if row % 4 else []
        if of_best:
            seen = [ranked[row - 1, 0]] if row % 4 else []
        made.append(next(one for one in ranked[row] if one not in seen))
    return np.array(made)


PAIRS = np.random.default_rng(8).normal(size=(60, 5))
"""Scores of five columns: rows beside each other often have one best."""


@pytest.mark.parametrize(
    ("of_best", "ever", "says"),
    [
        (False, False, "the best that is not the choice of the row before"),
        (True, False, "the best that is not the best of the row before"),
        (False, True, "the best that is not a choice of a row before"),
    ],
)
def test_choices_that_do_not_repeat_are_told_by_what_they_look_back_to(of_best, ever, says):
    best, tokens = PAIRS.argmax(axis=1), np.arange(5)
    taken = repeating(of_best, ever)
    made = Chosen(PAIRS, best, taken, (best, taken), tokens, np.arange(60) % 4)
    rules = [rule for rule in rules_of_one(made, False) if rule.startswith("the best that is not")]
    assert rules[0] == says
