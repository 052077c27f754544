"""Counts of rounds by hand: places that were reached and tried, what cannot be, forced rounds, and their limits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import Inconclusive
from parity.gates.acceptance_counts import (
    AcceptanceCounts,
    ForcedRounds,
    contradictions,
    counts_match,
    forced_rounds,
    log_softmax,
)
from parity.gates.acceptance_interval import (
    Interval,
    TokenSums,
    interval_verdict,
    mean_limits,
    paired_bootstrap,
    wilson_limits,
)
from parity.golden.case import Generation

K = (3,)


def told(lengths, drafts, tokens=None, finish="length") -> Generation:
    emitted = tuple(range(1 + sum(lengths) if tokens is None else tokens))
    return Generation(emitted=emitted, acceptance_length=tuple(lengths), accepted_drafts=tuple(drafts), finish=finish)


def test_each_place_is_counted_where_it_was_tried():
    """Five rounds of two prompts; the last one of either is cut, behind no draft and behind all three."""
    found = AcceptanceCounts.of([told([4, 2, 1], [3, 1, 0]), told([1, 3], [0, 3])], K)
    assert (found.rounds, found.tokens, found.cut, found.two_or_more) == (5, 11, 1, 3)
    assert found.reached.tolist() == [3, 2, 2] and found.tried.tolist() == [5, 3, 2]
    assert found.rates.tolist() == [0.6, 0.4, 0.4] and found.conditional.tolist() == [0.6, 2 / 3, 1.0]
    assert found.acceptance_length == 2.2 and found.accepted_drafts == 1.4 and found.two_or_more_share == 0.6
    assert found.adds_up and found.identity() == "AL 2.200 = 1 + 0.600 + 0.400 + 0.400 - 0.200 (1 cut)"
    assert found.figures() == {
        "rounds": 5, "tokens": 11, "cut": 1, "acceptance_length": 2.2, "accepted_drafts": 1.4,
        "rates": [0.6, 0.4, 0.4], "conditional": [0.6, 2 / 3, 1.0], "tried": [5, 3, 2], "two_or_more": 0.6,
    }  # fmt: skip


def test_a_round_cut_right_behind_a_draft_did_not_try_the_next_one():
    found = AcceptanceCounts.of([told([1], [1])], K)
    assert found.tried.tolist() == [1, 0, 0] and found.reached.tolist() == [1, 0, 0] and found.cut == 1
    assert found.figures()["conditional"] == [1.0, None, None]


def test_a_round_tries_as_many_drafts_as_its_own_k():
    """K is 1, 3, 1, 3 in turn, anew in each prompt."""
    found = AcceptanceCounts.of([told([2, 4, 2, 1], [1, 3, 1, 0]), told([2], [1])], (1, 3))
    assert found.reached.tolist() == [4, 1, 1] and found.tried.tolist() == [5, 1, 1]


def test_counts_that_do_not_add_up_say_so_and_no_rounds_are_no_division():
    found = AcceptanceCounts.of([told([2, 1], [1, 0], tokens=5)], K)
    assert not found.adds_up and found.identity() == "AL 2.000 is not 1 + 0.500 + 0.000 + 0.000"
    assert not AcceptanceCounts.of([told([2, 1], [1, 0], tokens=3)], K).adds_up
    one = AcceptanceCounts.of([told([2], [2])], K)
    assert (one.acceptance_length, one.accepted_drafts, one.two_or_more_share) == (2, 2, 1)
    assert one.identity() == "AL 2.000 = 1 + 1.000 + 1.000 + 0.000 - 1.000 (1 cut)"
    none = AcceptanceCounts.of([told([], [])], K)
    assert (none.acceptance_length, none.accepted_drafts, none.two_or_more_share) == (0, 0, 0)
    assert none.rates.tolist() == [0, 0, 0] and none.identity() == "AL 0.000 = 1 + 0.000 + 0.000 + 0.000"


@pytest.mark.parametrize(
    ("lengths", "drafts", "more", "said"),
    [
        ([4, 1], [3, 0], {}, []),
        ([4, 3], [3, 3], {}, []),  # the last one cut
        ([1, 2], [0, 1], {}, []),
        ([5, 1], [4, 0], {}, ["round 1: length 5 with 4 accepted drafts at K = 3"]),
        ([5, 1], [3, 0], {}, ["round 1: length 5 with 3 accepted drafts at K = 3"]),
        ([0, 1], [0, 0], {}, ["round 1: length 0 with 0 accepted drafts at K = 3"]),
        ([4, 1], [4, 0], {}, ["round 1: length 4 with 4 accepted drafts at K = 3"]),
        ([3, 1], [3, 0], {}, ["round 1: length 3 with 3 accepted drafts; only the last round can be cut"]),
        ([1, 3], [0, 1], {}, ["round 2: length 3 with 1 accepted drafts; no cut explains it"]),
        ([1, 1], [0, 2], {}, ["round 2: length 1 with 2 accepted drafts; no cut explains it"]),
        ([2, 1], [0, 2], {}, [
            "round 1: length 2 with 0 accepted drafts; only the last round can be cut",
            "round 2: length 1 with 2 accepted drafts; no cut explains it",
        ]),
        ([2, 1], [1], {}, ["2 acceptance lengths, 1 counts of accepted drafts"]),
        ([2, 1], [1, 0], {"tokens": 5}, ["acceptance lengths add up to 3, 4 tokens came behind the first"]),
        ([2, 1], [1, 0], {"budget": 5}, ["4 tokens of a budget of 5, ended by length"]),
        ([2, 1], [1, 0], {"budget": 3}, ["4 tokens of a budget of 3, ended by length"]),
        ([2, 1], [1, 0], {"budget": 3, "finish": "eos"}, ["4 tokens of a budget of 3, ended by eos"]),
        ([2, 1], [1, 0], {"budget": 5, "finish": "eos", "ends": (3,)}, []),
        ([2, 1], [1, 0], {"finish": "eos", "ends": (9,)}, ["it says EOS and ends with another token"]),
        ([2, 1], [1, 0], {"ends": (3,)}, []),
        ([2, 1], [1, 0], {"ends": (2,)}, ["it continues behind an end token"]),
        ([2, 1], [1, 0], {"ends": (0,)}, ["it continues behind an end token"]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_with_its_round(lengths, drafts, more, said):
    one = told(lengths, drafts, more.get("tokens"), more.get("finish", "length"))
    found = contradictions(one, K, more.get("budget", len(one.emitted)), more.get("ends", ()))
    assert list(found) == said


def test_each_round_is_judged_by_its_own_k():
    assert list(contradictions(told([2, 4, 2], [1, 3, 1]), (1, 3), 9)) == []
    found = list(contradictions(told([2, 2, 3], [1, 1, 2]), (1, 3), 8))
    assert found == ["round 3: length 3 with 2 accepted drafts at K = 1"]


def golden(lacks=None) -> SimpleNamespace:
    """One prompt that emits 0, 1, 2, 0 in rounds of two and one; each token is drawn with the probabilities below."""
    case = SimpleNamespace(id="p", generated=told([2, 1], [1, 0]).model_copy(update={"emitted": (0, 1, 2, 0)}))
    rows = np.log([[0.5, 0.25, 0.25], [0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]]).astype(np.float64)
    told_ = {(0, "target.logits"): rows[[2, 3, 0]], (1, "verify.logits"): rows[[1, 2, 0]]}
    told_[2, "verify.logits"] = rows[[3, 0, 0]]

    def stored(variant, prompt, round_, name):
        assert variant == "float32"
        return None if (round_, name) == lacks else told_.get((round_, name))

    manifest = SimpleNamespace(case=SimpleNamespace(prompts=[case]))
    return SimpleNamespace(manifest=manifest, stored=stored, folder="golden")


def drafting(*rounds) -> SimpleNamespace:
    return SimpleNamespace(
        folder="run", stored=lambda variant, prompt, round_, name: None if rounds[round_ - 1] is None else
        np.array(rounds[round_ - 1]),
    )  # fmt: skip


def test_drafts_are_weighed_along_the_goldens_text():
    """Behind 0: 1, 2, 0 are due. The first round's rows follow 0 and 1, the second's 2 and what nobody emitted."""
    found = forced_rounds(golden(), drafting([1, 0], [0, 2]), "bfloat16", 0)
    assert found.greedy.tolist() == [2, 1] and found.accepted.tolist() == [1, 1]
    expected = [1 + 0.2 + 0.2 * 0.1, 1 + 0.3]
    assert found.expected.tolist() == pytest.approx(expected)
    assert counts_match(ForcedRounds(found.greedy, np.array([1, 0]), found.expected), golden().manifest.case.prompts[0])
    assert not counts_match(found, golden().manifest.case.prompts[0])
    assert not counts_match(
        ForcedRounds(np.array([2, 2]), np.array([1, 0]), found.expected), golden().manifest.case.prompts[0]
    )


def test_what_lacks_of_forced_rounds_is_named():
    with pytest.raises(Inconclusive, match=r"^run holds no drafter.draft_tokens of prompt p, round 2$"):
        forced_rounds(golden(), drafting([1, 0], None), "bfloat16", 0)
    for lacks in ((0, "target.logits"), (1, "verify.logits"), (2, "verify.logits")):
        with pytest.raises(Inconclusive, match=r"^golden lacks logits of prompt p$"):
            forced_rounds(golden(lacks), drafting([1], [0]), "bfloat16", 0)


def test_a_prompt_without_rounds_has_none():
    one = golden()
    one.manifest.case.prompts[0].generated = told([], [])
    found = forced_rounds(one, drafting(), "bfloat16", 0)
    assert [part.tolist() for part in (found.greedy, found.accepted, found.expected)] == [[], [], []]


def test_log_probabilities_are_of_each_row_and_never_overflow():
    found = log_softmax(np.array([[0, np.log(3)], [5000, 5000], [-5000, 0]], np.float32))
    assert np.exp(found) == pytest.approx(np.array([[0.25, 0.75], [0.5, 0.5], [0, 1]])) and found.dtype == np.float64


@pytest.mark.parametrize(
    ("low", "high", "rounds", "prompts", "verdict", "why"),
    [
        (-0.05, 0.02, 354, 20, "pass", ""),
        (-0.051, -0.05, 354, 20, "inconclusive", "the limits hold -5%: more prompts are needed"),
        (-0.09, -0.051, 354, 20, "fail", "a loss of less than 5% is excluded"),
        (-0.01, 0.01, 353, 20, "inconclusive", "too few: 354 rounds and 20 prompts are needed"),
        (-0.01, 0.01, 354, 19, "inconclusive", "too few: 354 rounds and 20 prompts are needed"),
    ],
)
def test_a_loss_is_judged_by_either_limit_once_there_is_enough(low, high, rounds, prompts, verdict, why):
    assert interval_verdict(Interval(0.0, low, high), 0.05, rounds, prompts) == (verdict, why)


def test_an_interval_is_said_in_per_cent():
    assert str(Interval(-0.0123, -0.05, 0.02)) == "-1.2%, 95 % limits [-5.0%, +2.0%]"


def test_limits_of_a_bootstrap_are_the_quantiles_of_drawn_prompts_widened():
    """Of two prompts that are 0.9 and 1.1 of the reference the mean is drawn as 0.9, 1 or 1.1, then sqrt(2) as wide."""
    rounds = np.full(2, 10.0)
    found = paired_bootstrap(TokenSums(np.array([18.0, 22.0]), rounds), TokenSums(np.full(2, 20.0), rounds), 0)
    assert found.estimate == pytest.approx(0, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((-0.1 * 2**0.5, 0.1 * 2**0.5))
    one = paired_bootstrap(TokenSums(np.array([18.0]), rounds[:1]), TokenSums(np.array([20.0]), rounds[:1]), 0)
    assert (one.estimate, one.low, one.high) == pytest.approx((-0.1, -0.1, -0.1))


def test_a_side_without_rounds_or_tokens_is_no_division():
    none, some = TokenSums(np.zeros(1), np.zeros(1)), TokenSums(np.full(1, 4.0), np.full(1, 2.0))
    assert paired_bootstrap(none, some, 0).estimate == -1
    assert paired_bootstrap(some, none, 0).estimate == pytest.approx(2 / 1e-9)


def test_wilsons_limits_of_one_try_and_of_all():
    z = 1.96**2
    assert wilson_limits(1, 1) == pytest.approx((1 / (1 + z), 1.0)) and wilson_limits(0, 1)[1] == pytest.approx(
        z / (1 + z)
    )


def test_limits_of_a_mean_stay_within_what_can_be_and_need_two_values():
    assert mean_limits([], 0, 4) == mean_limits([2.0], 0, 4) == (0, 4)
    assert mean_limits([1.0, 3.0], -9, 9) == pytest.approx((2 - 2**0.5, 2 + 2**0.5))
    assert mean_limits([1.0, 3.0], 1, 3) == (1, 3)
    low, high = mean_limits([1.0, 1.0, 1.0, 1.0, 3.0], 0, 4)
    assert low == pytest.approx(1.4 - 0.4 * (5 / 4) ** 0.5) and 2.2 < high < 2.7
