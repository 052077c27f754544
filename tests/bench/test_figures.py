"""Statistics, the model and the controller, against what is known of them."""

from __future__ import annotations

import numpy as np
import pytest

from parity.bench.controller import DraftLengthController
from parity.bench.model import (
    RoundCost,
    best_k,
    expected_tokens,
    expected_tokens_constant,
    speed_up,
    speed_up_constant,
)
from parity.bench.statistics import Times, rate_ratio, spread, student


@pytest.mark.parametrize(
    ("freedom", "confidence", "t"),
    [(1, 0.95, 6.314), (2, 0.95, 2.920), (4, 0.95, 2.132), (5, 0.975, 2.571), (10, 0.995, 3.169), (30, 0.95, 1.697)],
)
def test_students_quantiles_are_those_of_the_tables(freedom, confidence, t):
    assert student(freedom, confidence) == pytest.approx(t, abs=6e-4)


def test_a_median_of_one_value_says_so():
    assert str(spread([3.0])) == "3 (one run, no spread)"
    assert (spread([1.0, 2.0, 9.0]).median, spread([1.0, 2.0, 9.0]).low) == (2.0, 1.5)
    with pytest.raises(ValueError, match="nothing"):
        spread([])


def made_up(drawn, groups, repeats, of_groups, of_repeats, truth=1.3):
    """Two sides whose ratio of rates is the truth, times a factor for each group."""
    factor = np.exp(drawn.normal(0, of_groups, (groups, 1)))
    noise = np.exp(drawn.normal(0, of_repeats, (2, groups, repeats)))
    tokens = np.full((groups, repeats), 47.0)
    return Times(tokens, noise[0] / truth / factor), Times(tokens, noise[1])


@pytest.mark.parametrize(("groups", "repeats", "of_groups", "of_repeats"), [(5, 3, 0.1, 0.05), (1, 5, 0.0, 0.05)])
def test_limits_miss_the_truth_on_each_side_once_in_twenty(groups, repeats, of_groups, of_repeats):
    """Of 300 benches at 5 % a side 15 are expected to miss, and 25 or more by chance once in a hundred."""
    drawn = np.random.default_rng(1)
    found = [rate_ratio(*made_up(drawn, groups, repeats, of_groups, of_repeats)) for _ in range(300)]
    assert sum(one.low > 1.3 for one in found) < 25 and sum(one.high < 1.3 for one in found) < 25
    assert np.median([one.high / one.low for one in found]) < 1.4  # and they are no wide nothing


def test_limits_need_repeats():
    one = rate_ratio(*made_up(np.random.default_rng(0), 5, 1, 0.1, 0.1))
    assert one.low is None and "one run, no spread" in str(one)


def test_expected_tokens_are_those_of_the_process():
    rates, drawn = [0.9, 0.5, 0.8], np.random.default_rng(0)
    accepted = np.cumprod(drawn.random((20_000, 3)) < rates, axis=1).sum(axis=1)
    assert expected_tokens(rates) == 1 + 0.9 + 0.45 + 0.36
    assert 1 + accepted.mean() == pytest.approx(expected_tokens(rates), abs=0.03)  # 4 standard errors
    with pytest.raises(ValueError, match="no probabilities"):
        expected_tokens([1.2])


@pytest.mark.parametrize("a", [0.0, 0.3, 0.8, 1.0])
def test_the_constant_form_is_the_general_one_with_equal_rates(a):
    for k in (1, 4, 10):
        assert expected_tokens_constant(a, k) == pytest.approx(expected_tokens([a] * k))
        assert speed_up_constant(a, k, 0.3) == pytest.approx(speed_up([a] * k, RoundCost(0.3 * k + 1.0, 1.0)))
        assert RoundCost(0.3 * k + 1.0, 1.0).per_draft(k) == pytest.approx(0.3)
    if a < 1:
        assert speed_up_constant(a, 4) == pytest.approx((1 - a**5) / ((1 - a) * 5))


COST = [1.0, *(1.3 + 0.08 * k for k in range(1, 11))]
"""Seconds of a round by its drafts, in plain steps: a draft is cheap, the drafter's pass is not."""


def play(rates_of, rounds, seed):
    """A controller against an acceptance process."""
    drawn, made = np.random.default_rng(seed), DraftLengthController(10)
    for number in range(rounds):
        k, rates, accepted = made.choose(), rates_of(number), 0
        while accepted < k and drawn.random() < rates[accepted]:
            accepted += 1
        made.took(k, accepted, COST[k] * drawn.lognormal(0, 0.05))
    return made.chosen


def lost(chosen, rates):
    """Share of the expected rate at the best K that these choices give away."""
    rate = [expected_tokens(rates[:k]) / COST[k] for k in range(11)]
    return 1 - np.mean([rate[k] for k in chosen]) / max(rate)


@pytest.mark.parametrize("a", [0.9, 0.8, 0.6, 0.3, 0.05])
def test_the_controller_finds_the_best_k_within_forty_rounds(a):
    """Behind its fortieth round it gives away at most 5 % of the best K's rate, in the mean of ten runs."""
    rates = [a] * 10
    assert np.mean([lost(play(lambda n: rates, 200, seed)[40:], rates) for seed in range(10)]) < 0.05


def test_the_controller_finds_a_cliff():
    """Three drafts are good and the fourth never is."""
    rates = [0.9, 0.9, 0.9, *[0.02] * 7]
    assert best_k(rates, COST) == 3
    assert np.mean([lost(play(lambda n: rates, 200, seed)[40:], rates) for seed in range(10)]) < 0.05


@pytest.mark.parametrize(("before", "behind"), [(0.9, 0.2), (0.2, 0.9)])
def test_the_controller_follows_a_shift_within_a_hundred_rounds(before, behind):
    chosen = [play(lambda n: [before if n < 150 else behind] * 10, 350, seed) for seed in range(10)]
    assert np.mean([lost(one[250:], [behind] * 10) for one in chosen]) < 0.05
    assert np.mean([lost(one[150:160], [behind] * 10) for one in chosen]) > 0.1  # there was something to follow


def test_exploration_is_bounded():
    """Behind the opening every sixteenth round at the most leaves what looks best, by one draft."""
    made = DraftLengthController(10)
    strayed = []
    for _ in range(160):
        best, k = made.best(), made.choose()
        strayed.append(k - best)
        made.took(k, min(k, 3), COST[k])
    assert sum(map(bool, strayed[3:])) <= 10 and {abs(one) for one in strayed[3:]} <= {0, 1}


def test_a_round_that_the_budget_cut_says_nothing_of_the_draft_behind():
    cut, refused = DraftLengthController(4), DraftLengthController(4)
    for made, ended in ((cut, True), (refused, False)):
        made.choose()
        made.took(4, 2, 1.0, cut=ended)
    assert cut.conditional[2] > refused.conditional[2]


def test_there_has_to_be_something_to_choose():
    with pytest.raises(ValueError, match="nothing to choose"):
        DraftLengthController(2, least=3)
    assert min(play(lambda n: [0.01] * 10, 60, 0)) == 0
    made = DraftLengthController(4, least=1)
    for _ in range(60):
        made.took(made.choose(), 0, 1.0)
    assert min(made.chosen) == 1
