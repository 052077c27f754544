"""Choices by hand: verdicts of tokens and experts, whose scores they contradict, and what a stage of them comes to."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import choices, intervals
from parity.compare.choices import (
    BUG,
    Choices,
    _graver,
    in_vocabulary,
    judge,
    judge_choices,
    judge_exact,
    judge_experts,
    judge_pair,
    ranked,
    regrets,
    result_of,
    ulp,
)
from parity.compare.report import OwnExperts, Place, conclude, exit_code, join
from parity.compare.rows import StageRows
from parity.compare.scores import _slack, _summed, members, paired, scores_of, shared
from parity.golden.ranks import SUM
from parity.policy import Row
from parity.stages import declared

NAMES = declared(2, 1)
TOKENS, LOGITS, EXPERTS, ROUTER = "verify.tokens", "verify.logits", "target.layers.0.experts", (
    "target.layers.0.router_logits"
)  # fmt: skip


def rows_of(name: str, golden, device=None, noise=None, first: int = 5, **more) -> StageRows:
    golden = np.array(golden)
    number = np.arange(len(golden))
    device = golden if device is None else np.array(device)
    noise = None if noise is None else np.full(len(golden), noise)
    return StageRows(NAMES[name], golden, device, None, number * 0, number * 0 + 1, number + first, noise=noise, **more)


def policy(judge_: str) -> Row:
    return Row(stages="*", judge=judge_, bounds={}, reason="as a test has it")


SCORES = np.float32([[4, 4, 3, 0], [4, 3.9, 3, 0], [0, 1, 2, 4]])
NONE = np.zeros(3, bool)


def test_a_ulp_of_bfloat16_is_that_of_the_larger_magnitude_and_zero_has_one():
    assert ulp(np.array([1.0, 1.99, 2.0, -4.0, 0.0])).tolist()[:4] == [2.0**-7, 2.0**-7, 2.0**-6, 2.0**-5]
    assert 0 < ulp(np.array([0.0]))[0] < 1e-38
    apart, step = regrets(np.float32([[-4, -3.5], [-3.5, -4]]), np.array([0, 0]), np.array([1, 1]))
    assert apart.tolist() == [-0.5, 0.5] and step.tolist() == [2.0**-5, 2.0**-5]


def test_the_higher_score_of_two_comes_first_and_equal_ones_stay():
    mine, theirs = ranked(SCORES, np.array([0, 1, 3]), np.array([1, 0, 2]))
    assert (mine.tolist(), theirs.tolist()) == ([0, 0, 3], [1, 1, 2])


@pytest.mark.parametrize(
    ("mine", "theirs", "noise", "verdict", "regret"),
    [
        ([0, 1], [1, 0], 0, "same", 0),
        ([0, 2], [1, 2], 0, "tie", 0),  # 0 and 1 are equal
        ([0, 1], [0, 2], 0.1, "bug", 1),
        ([0, 1], [0, 2], 0.15, "noise", 1),
        ([0, 1], [2, 3], 0.15, "bug", 4),  # the best one dropped against the worst taken
        ([0, 1], [0, 0], 9, "bug", None),
        ([0, 1], [0, -1], 9, "bug", None),
        ([0, 1], [0, 4], 9, "bug", None),
    ],
)
def test_experts_are_judged_as_sets(mine, theirs, noise, verdict, regret):
    found = judge_experts(SCORES[:1], np.array([mine]), np.array([theirs]), np.array([noise]))
    assert found.verdict.tolist() == [verdict] and (regret is None or found.regret.tolist() == [regret])


def test_a_counterfactuals_better_experts_are_another_choice_as_well():
    way = SCORES[:1], np.array([[2, 3]]), np.array([[0, 1]]), np.array([0.0])
    assert judge_experts(*way).verdict[0] == "tie" and judge_experts(*way, imagined=True).verdict[0] == "bug"
    assert judge(SCORES[:1], np.array([3]), np.array([0]), np.array([0.0])).regret[0] == -4


@pytest.mark.parametrize(
    ("device", "verdict", "counts", "regret"),
    [
        ([0, 0, 3], "pass", {"same": 3, "tie": 0, "noise": 0, "bug": 0}, 0),
        ([1, 1, 3], "pass", {"same": 1, "tie": 1, "noise": 1, "bug": 0}, 0.1),
        ([2, 0, 3], "fail", {"same": 2, "tie": 0, "noise": 0, "bug": 1}, 1),
        ([-1, 4, 3], "fail", {"same": 1, "tie": 0, "noise": 0, "bug": 2}, None),
    ],
)
def test_tokens_are_judged_by_the_goldens_own_scores(device, verdict, counts, regret):
    tokens, scores = rows_of(TOKENS, [0, 0, 3], device), rows_of(LOGITS, SCORES, noise=0.02)
    found = judge_choices(tokens, scores, policy("decision"), NONE, NONE)
    assert (found.verdict, found.choices) == (verdict, counts) and found.rows == 3 and found.judge == "decision"
    assert regret is None or found.largest_regret == pytest.approx(regret)


def test_without_scores_or_with_ids_that_are_no_integers_every_difference_is_a_bug():
    tokens, scores = rows_of(TOKENS, [0, 0, 3], [1, 0, 3]), rows_of(LOGITS, SCORES, noise=0.02)
    for given in (None, scores.take(np.array([0, 1]))):
        assert judge_choices(tokens, given, policy("decision"), NONE, NONE).choices[BUG] == 1
    floats = replace(tokens, device=tokens.device.astype(np.float32))
    assert judge_choices(floats, scores, policy("decision"), NONE, NONE).choices[BUG] == 1
    experts = rows_of(EXPERTS, [[0, 1]], [[1, 0]])
    assert judge_exact(experts, policy("exact")).verdict == "fail"
    found = judge_choices(experts, rows_of(ROUTER, SCORES[:1], noise=0.02), policy("experts"), NONE[:1], NONE[:1])
    assert found.verdict == "pass"


def judged(*verdicts: str, against=None, excluded=None, regret=None, name: str = TOKENS, golden=None):
    rows = rows_of(name, golden or list(range(len(verdicts))))
    made = Choices(np.array(verdicts), np.arange(len(verdicts), dtype=float) if regret is None else np.array(regret))
    flags = (None if one is None else np.array(one, bool) for one in (against, excluded))
    return result_of(rows, made, policy("decision"), *flags)


def test_a_bug_fails_its_stage_and_the_first_and_the_worst_are_placed():
    found = judged("same", "bug", "tie", "bug", "noise", regret=[0, 3, 9, 5, 1])
    assert (found.verdict, found.choices) == ("fail", {"same": 1, "tie": 1, "noise": 1, "bug": 2})
    assert (found.first, found.worst) == (Place(TOKENS, None, 0, 1, 6), Place(TOKENS, None, 0, 1, 8))
    assert (found.bad_rows, found.rows_apart, found.against_scores, found.note) == (2, 0, 0, "")
    assert found.largest_regret == 9 and judged().verdict == "pass" and judged().largest_regret == 0


def test_rows_set_apart_count_only_where_they_contradict_their_own_scores():
    found = judged("bug", "same", "tie", excluded=[1, 0, 0])
    assert (found.verdict, found.choices, found.rows_apart) == (
        "pass", {"same": 1, "tie": 1, "noise": 0, "bug": 0}, 1,
    )  # fmt: skip
    assert judged("bug", "same", excluded=[0, 1], regret=[2, 7]).largest_regret == 2
    found = judged("same", "same", "tie", excluded=[1, 0, 0], against=[1, 0, 0])
    assert (found.verdict, found.against_scores, found.choices) == (
        "fail", 1, {"same": 1, "tie": 1, "noise": 0, "bug": 1},
    )  # fmt: skip
    assert found.note == "1 of 3 rows are not the best of the verify.logits that they were made from"
    found = judged("same", "same", against=[0, 1], name=EXPERTS, golden=[[0, 1], [2, 3]])
    assert found.note == f"1 of 2 rows are not the 2 best of the {ROUTER} that they were made from"


def test_of_two_judgements_the_graver_counts_row_by_row():
    one = Choices(np.array(["same", "tie", "noise", "bug"]), np.array([0.0, 1, 2, 3]))
    other = Choices(np.array(["tie", "same", "bug", "noise"]), np.array([9.0, 0, 1, 4]))
    found = _graver(one, other)
    assert found.verdict.tolist() == ["tie", "tie", "bug", "bug"] and found.regret.tolist() == [9, 1, 2, 4]
    assert found.count("tie") == 2


def pair(mine, theirs, name: str = TOKENS, row: str = "decision", scores=SCORES, noise: float = 0.02):
    both = (rows_of(name, theirs, one) for one in (mine, theirs))
    logits = rows_of(LOGITS if name == TOKENS else ROUTER, scores, noise=noise)
    return judge_pair(*both, logits, [None, None], policy(row), None, np.zeros(len(scores), bool))


@pytest.mark.parametrize(("mine", "theirs"), [([0, 0, 3], [1, 1, 3]), ([1, 1, 3], [0, 0, 3])])
def test_two_devices_are_judged_by_the_score_of_the_lower_whichever_is_first(mine, theirs):
    found = pair(mine, theirs)
    assert found.choices == {"same": 1, "tie": 1, "noise": 1, "bug": 0}
    assert found.largest_regret == pytest.approx(0.1)
    assert pair(mine, theirs, row="exact").choices[BUG] == 2


@pytest.mark.parametrize("token", [-1, 4])
def test_an_id_of_either_device_without_a_score_is_a_bug(token):
    assert pair([token, 0, 3], [0, 0, 3]).choices == {"same": 2, "tie": 0, "noise": 0, "bug": 1}
    assert pair([0, 0, 3], [token, 0, 3]).choices == {"same": 2, "tie": 0, "noise": 0, "bug": 1}
    assert pair([token, 0, 3], [token, 0, 3]).choices["same"] == 3


def test_experts_of_two_devices_are_judged_both_ways():
    for mine, theirs in (([[0, 2]], [[0, 1]]), ([[0, 1]], [[0, 2]])):
        found = pair(mine, theirs, EXPERTS, "experts", SCORES[:1], 0.1)
        assert found.choices[BUG] == 1 and found.largest_regret == 1
        assert pair(mine, theirs, EXPERTS, "experts", SCORES[:1], 0.15).choices["noise"] == 1
    assert pair([[0, 1]], [[1, 0]], EXPERTS, "experts", SCORES[:1]).verdict == "pass"


def test_an_id_is_of_the_vocabulary_as_wide_as_the_goldens_logits():
    shape = SimpleNamespace(full_shape=(7, 5))
    source = SimpleNamespace(rows={("float32", 0, 0, LOGITS): shape})
    rows = rows_of("drafter.draft_tokens", [0] * 4, [-1, 0, 4, 5])
    assert in_vocabulary(replace(rows, source=source)).tolist() == [False, True, True, False]
    assert in_vocabulary(rows).tolist() == [False, True, True, True]
    assert in_vocabulary(replace(rows, source=SimpleNamespace(rows={}))).tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    ("stage", "scores"),
    [
        ("target.tokens", "target.logits"), ("drafter.draft_tokens", "drafter.logits"), (EXPERTS, ROUTER),
        ("drafter.layers.1.pages", "drafter.layers.1.page_scores"), ("accept.emitted", None),
        ("target.layers.0.out", None),
    ],
)  # fmt: skip
def test_a_choice_is_made_from_its_scores(stage, scores):
    assert scores_of(stage) == scores


def test_members_are_a_table_and_a_row_with_an_id_that_is_none_is_empty():
    table = members(np.array([[0, 2], [1, 1], [3, 0], [-1, 0], [4, 0]]), 4)
    assert [np.flatnonzero(row).tolist() for row in table] == [[0, 2], [1], [0, 3], [], []]


def test_rows_are_paired_by_prompt_round_and_position():
    tokens, scores = rows_of(TOKENS, [7, 8, 9]), rows_of(LOGITS, SCORES, first=6)
    assert [one.tolist() for one in shared(tokens, scores)] == [[1, 2], [0, 1]]
    of_tokens, of_scores = paired(tokens, scores)
    assert of_tokens.golden.tolist() == [8, 9] and (of_scores.golden == SCORES[:2]).all()
    assert of_tokens.position.tolist() == of_scores.position.tolist() == [6, 7]
    same = paired(tokens, rows_of(LOGITS, SCORES))
    assert same[0] is tokens
    assert [one.tolist() for one in shared(tokens, rows_of(LOGITS, SCORES, first=9))] == [[], []]


def test_sums_of_ranks_may_part_by_two_roundings_for_each():
    place, named = ("bfloat16", 0, 1, LOGITS), NAMES[LOGITS]
    part = SimpleNamespace(sharding=SUM)
    side = SimpleNamespace(parts={place: [part] * 4, ("bfloat16", 0, 0, LOGITS): [part] * 2, ("x", 0, 0, TOKENS): []})
    del side.parts["x", 0, 0, TOKENS]
    assert _summed(side, named) == 4 and _summed(SimpleNamespace(parts={}), named) == 1
    assert _summed(SimpleNamespace(parts={place: [SimpleNamespace(sharding="rows")] * 4}), named) == 1
    scores = rows_of(LOGITS, SCORES)
    assert _slack(side, named, scores, SCORES).tolist() == [2 * 4 * 2.0**-24 * 4] * 3
    half = replace(scores, device=SCORES.astype(np.float16))
    assert _slack(side, named, half, -SCORES).tolist() == [2 * 4 * 2.0**-8 * 4] * 3
    assert _slack(SimpleNamespace(parts={}), named, scores, SCORES).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("verdicts", "joined", "concluded", "code"),
    [
        (["pass", "warn"], "warn", "warn", 0),
        (["fail", "disputed", "inconclusive"], "fail", "fail", 1),
        (["disputed", "inconclusive"], "disputed", "disputed", 3),
        (["inconclusive", "warn"], "inconclusive", "inconclusive", 3),
        (["not judged", "pass"], "pass", "pass", 0),
        (["not judged"], "not judged", "inconclusive", 3),
        ([], "inconclusive", "inconclusive", 3),
    ],
)
def test_verdicts_are_joined_by_the_gravest(verdicts, joined, concluded, code):
    assert (join(verdicts), conclude(verdicts), exit_code(conclude(verdicts))) == (joined, concluded, code)


def test_a_place_is_told_as_far_as_it_is_known():
    assert str(Place("a.b", 3, 1, 2)) == "a.b, prompt 1, round 2"
    assert str(Place("a.b", None, 0, 0, 0, 0)) == "a.b, prompt 0, round 0, position 0, head 0"


def test_experts_of_the_runs_own_are_told_and_beyond_what_rounding_explains_inconclusive():
    own = OwnExperts(3, 40, 2, 100, 2.4)
    said = "3 of 40 positions (7.5%) ran through experts of the run's own"
    judged_ = "they are judged against the reference run again with these experts"
    assert str(own) == f"{said}; {judged_}: 2 of 100 choices are not the reference's, rounding explains 2"
    assert own.verdict == "pass" and replace(own, explained=2.0).verdict == "pass"
    assert replace(own, explained=1.9).verdict == "inconclusive" and str(OwnExperts(0, 0)).startswith(
        "0 of 0 positions (0"
    )
    known = "force the golden's experts in the run, or compare where the reference can run again"
    assert str(replace(own, lack="no room")) == f"{said}, and nothing says what these make of them (no room): {known}"


@pytest.mark.parametrize(
    ("freedom", "due", "within"),
    [
        (1, (3.927042e-05, 0.4549364, 7.8794386), 1e-6), (2, (0.01002508, 1.3862944, 10.5966347), 1e-6),
        (64, (38.6097785, 63.3345820, 96.8781135), 1e-8), (399, (329.9938759, 398.3335317, 475.5152911), 1e-8),
        (401, (331.8117386, 400.3335307, 477.6974485), 5e-5), (1000, (888.5635232, 999.3334124, 1118.9480663), 1e-5),
    ],
)  # fmt: skip
def test_quantiles_are_chi_squares(freedom, due, within):
    """Due is `chi2.ppf` of SciPy at 0.5 %, 50 % and 99.5 %."""
    assert [intervals.quantile(share, freedom) for share in (0.005, 0.5, 0.995)] == pytest.approx(due, rel=within)
    low, high = intervals.factors(freedom)
    assert (low, high) == pytest.approx(((freedom / due[2]) ** 0.5, (freedom / due[0]) ** 0.5), rel=within)
    assert intervals.factors(freedom, 0.5)[1] < high


def test_errors_in_one_direction_have_as_many_degrees_of_freedom_as_sums_and_in_many_more():
    random = np.random.default_rng(0)
    one = np.outer(random.normal(size=50), random.normal(size=8))
    assert intervals.freedom(one) == pytest.approx(8)
    assert intervals.freedom(np.eye(8)) == pytest.approx(64) and intervals.freedom(np.zeros((3, 8))) == 8
    assert intervals.freedom(np.diag([3.0, 4.0])) == pytest.approx(2 * 25**2 / (81 + 256))


def test_choices_know_what_is_imagined():
    rows = rows_of(TOKENS, [0])
    assert not choices._imagined(rows)
    assert choices._imagined(replace(rows, source=SimpleNamespace(imagined=True)))
    assert not choices._imagined(replace(rows, source=SimpleNamespace(imagined=False)))
