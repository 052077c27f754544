"""Choices: same, tie, noise or bug, by the golden's own scores."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest

from parity.compare.choices import BUG, NOISE, SAME, TIE, judge, judge_choices, judge_experts, ulp
from parity.compare.rows import StageRows
from parity.compare.scores import NOISE_SIGMAS
from parity.policy import read_policy

QUIET = np.array([1e-6])


def verdict(scores, mine, theirs, noise=QUIET) -> str:
    return judge(np.array([scores]), np.array([mine]), np.array([theirs]), noise).verdict[0]


@pytest.mark.parametrize(("value", "step"), [(1.0, 2**-7), (18.0, 0.125), (0.75, 2**-8), (-3.0, 2**-6)])
def test_one_bfloat16_ulp_follows_the_exponent(value, step):
    assert ulp(np.array([value]))[0] == step


def test_a_gap_of_exactly_one_ulp_of_the_larger_score_is_a_tie():
    assert verdict([18.0, 17.875], 0, 1) == TIE
    assert verdict([18.0, 17.87], 0, 1) == BUG


def test_noise_explains_what_lies_within_five_sigmas_of_the_rows_own():
    noise = np.array([0.2])
    assert verdict([18.0, 18.0 - NOISE_SIGMAS * 0.2], 0, 1, noise) == NOISE
    assert verdict([18.0, 18.0 - NOISE_SIGMAS * 0.2 - 0.01], 0, 1, noise) == BUG


def test_the_same_choice_is_the_same_whatever_the_scores():
    assert verdict([1.0, 5.0], 0, 0) == SAME


@pytest.mark.parametrize(("imagined", "due"), [(False, TIE), (True, BUG)])
def test_a_choice_that_the_scores_rate_higher_is_another_one_only_beside_a_counterfactual(imagined, due):
    judged = judge(np.array([[1.0, 5.0]]), np.array([0]), np.array([1]), QUIET, imagined)
    assert judged.verdict[0] == due


def experts(scores, mine, theirs) -> str:
    return judge_experts(np.array([scores]), np.array([mine]), np.array([theirs]), QUIET).verdict[0]


def test_the_order_of_experts_carries_no_meaning():
    assert experts([3.0, 2.0, 1.0, 0.0], [0, 1], [1, 0]) == SAME


def test_swapping_tied_experts_is_a_tie_and_others_a_bug():
    scores = [3.0, 2.0, 1.999, 0.0]
    assert experts(scores, [0, 1], [0, 2]) == TIE
    assert experts(scores, [0, 1], [0, 3]) == BUG


@pytest.mark.parametrize("wrong", [[0, 0], [0, 4], [-1, 0]])
def test_a_repeated_or_impossible_expert_is_a_bug(wrong):
    assert experts([3.0, 2.0, 1.999, 0.0], [0, 1], wrong) == BUG


@pytest.mark.parametrize(
    ("vocabulary", "token", "due"),
    [
        (None, 99, TIE),
        (None, -3, BUG),
        (None, 10**6, BUG),
        ((40, 99, 7), 99, TIE),
        ((40, 7, 99), 99, BUG),
        ((40, 7, 8), 99, BUG),
        ((), 1, TIE),
    ],
)
def test_a_draft_is_judged_by_the_column_that_stands_for_it(vocabulary, token, due, shallow_golden):
    """Where nobody says which one that is, it may be the best one left, if it is an id of the vocabulary."""
    named = shallow_golden.declared["drafter.draft_tokens"]
    ids = {name: np.array([number]) for name, number in (("prompt", 0), ("round", 1), ("position", 9))}
    first = (vocabulary or [0])[0]
    chosen = StageRows(
        named, np.array([first]), np.array([token]), None, **ids, source=_told(shallow_golden, vocabulary)
    )
    logits = np.array([[2.001, 2.0, 0.0]], np.float32)
    scores = StageRows(shallow_golden.declared["drafter.logits"], logits, logits, logits + 1e-3, **ids)
    row = read_policy().row(named.name, "chained")
    none = np.zeros(1, bool)
    assert judge_choices(chosen, scores, row, none, none).choices[due] == 1


@pytest.mark.parametrize(("token", "due"), [(0, SAME), (1, TIE), (2, BUG), (3, BUG), (10**6, BUG), (-1, BUG)])
def test_a_token_of_the_target_is_one_of_its_columns(token, due, shallow_golden):
    named = shallow_golden.declared["verify.tokens"]
    ids = {name: np.array([number]) for name, number in (("prompt", 0), ("round", 1), ("position", 9))}
    chosen = StageRows(named, np.array([0]), np.array([token]), None, **ids, source=shallow_golden)
    logits = np.array([[2.001, 2.0, 0.0]], np.float32)
    scores = StageRows(shallow_golden.declared["verify.logits"], logits, logits, logits + 1e-3, **ids)
    none = np.zeros(1, bool)
    row = read_policy().row(named.name, "chained")
    assert judge_choices(chosen, scores, row, none, none).choices[due] == 1


def _told(golden, vocabulary):
    """The golden as one whose manifest says this of the draft vocabulary, its checkpoint somewhere else."""
    told = copy(golden)
    gone = golden.manifest.model.drafter.model_copy(update={"path": "gone"})
    model = golden.manifest.model.model_copy(update={"draft_vocabulary": vocabulary, "drafter": gone})
    told.manifest = golden.manifest.model_copy(update={"model": model})
    return told
