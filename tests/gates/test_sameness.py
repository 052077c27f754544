"""What "the same again" means: of values that are no numbers, of places, and of a play that an end token cut short."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.report import Place
from parity.errors import DeviceFailed
from parity.gates.rollback.invariants import position_of
from parity.gates.rollback.repeat import RepeatResult, comparison_for, not_repeated, repeat_check
from parity.gates.rollback.sameness import BitExact, WithinNoise, changed_row, chosen
from parity.stages import declared

LOGITS, TOKENS = "verify.logits", "verify.tokens"
NOISE = SimpleNamespace(noisy=lambda stage: 1e-3, flips=False, flip_bound=lambda stage: 0.0)


def within(precision: str) -> WithinNoise:
    return WithinNoise(declared(2, 1), precision, NOISE)


def logits(lost: float, at: int = 5) -> np.ndarray:
    """Three rows, one column of which is no number, as that of a padded vocabulary."""
    rows = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    rows[:, at] = lost
    return rows


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("lost", [-np.inf, np.inf, np.nan])
def test_the_same_value_that_is_no_number_is_the_same_and_another_is_not(lost, precision):
    same, before = within(precision), {LOGITS: logits(lost)}
    assert same.changed(LOGITS, before, {LOGITS: logits(lost) * np.float32(1 + 1e-7)}) is None
    assert same.changed(LOGITS, before, {LOGITS: logits(lost) * np.float32(1.1)}) == 0
    for other in (logits(lost, at=4), logits(-lost if lost < 0 else -np.inf), logits(0.0)):
        assert same.changed(LOGITS, before, {LOGITS: other}) == 0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_masked_column_explains_no_other_token(precision):
    scores = logits(-np.inf)
    best = scores.argmax(axis=1)
    before = {LOGITS: scores, TOKENS: best}
    assert within(precision).changed(TOKENS, before, {LOGITS: scores, TOKENS: (best + 1) % 4}) == 0


@pytest.mark.parametrize("first", [2, 5])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_another_token_within_noise_is_explained_whichever_of_the_ids_is_larger(first, precision):
    """Columns 2 and 5 are alike but for a part in ten million; what lies further off explains nothing."""
    scores = np.tile(np.float32([0, 1, 3, 0, 1, 3, 2, 1]), (3, 1))
    scores[:, first] += np.float32(3e-7)
    tokens = np.full(3, first)
    before = {LOGITS: scores, TOKENS: tokens}
    assert within(precision).changed(TOKENS, before, {LOGITS: scores, TOKENS: 7 - tokens}) is None
    assert within(precision).changed(TOKENS, before, {LOGITS: scores, TOKENS: np.full(3, 6)}) == 0


def test_a_row_of_a_pass_is_told_by_its_position():
    """Behind a prompt of 9 a round verifies from 9 on and drafts from the last committed row; caches hold every row."""
    assert [position_of("prefill", "target.layers.0.q", 3, 9, 8), position_of("verify", LOGITS, 3, 9, 8)] == [3, 12]
    assert [position_of("draft", "drafter.input_ids", 3, 9, 8), position_of("commit", "kv.target.0.k", 3, 9, 8)] == [
        11,
        3,
    ]
    assert position_of("commit", "accept.emitted", 1, 9, 8) is None


@pytest.mark.parametrize(("rounds", "said"), [(1, "prefill and a round"), (0, "prefill, which ends the sequence")])
def test_only_what_was_played_is_said_to_repeat(rounds, said):
    line = repeat_check(RepeatResult(2, 40, 0, "", (0.0, ""), None, rounds), within("float32"))
    assert line.verdict == "pass" and line.evidence.endswith(f"40 tensors of {said}"), line


OUT, EXPERTS, ROUTER = "target.layers.0.out", "target.layers.0.experts", "target.layers.0.router_logits"
DRAFTS, DRAFT_LOGITS = "drafter.draft_tokens", "drafter.logits"


def rows(*changes: float, size: int = 4) -> np.ndarray:
    """A row of ones for each, the first of its elements changed by that much."""
    made = np.ones((len(changes), size), np.float32)
    made[:, 0] += np.float32(changes)
    return made


@pytest.mark.parametrize(("precision", "bound"), [("float32", 256 * 2.0**-23), ("bfloat16", 3e-3)])
def test_a_row_may_differ_by_its_bound_and_the_first_beyond_is_told(precision, bound):
    """Rows of four ones: a change of one element is half as large, relative."""
    same, zero = within(precision), {OUT: rows(0, 0, 0, 0)}
    apart = same.apart(OUT, zero, {OUT: rows(0, bound, 2.5 * bound, 8 * bound)})
    assert apart == pytest.approx([0, 0.5, 1.25, 4], rel=1e-2)
    assert same.changed(OUT, zero, {OUT: rows(0, bound, 2.5 * bound, 8 * bound)}) == 2
    assert same.changed(OUT, zero, {OUT: rows(0, bound, 1.9 * bound, 0)}) is None
    assert same.bound(OUT) == pytest.approx(bound)


def test_a_row_at_its_bound_is_within_it(monkeypatch):
    monkeypatch.setattr(WithinNoise, "apart", lambda self, stage, before, now: np.array([0.5, 1.0, np.nextafter(1, 2)]))
    assert within("float32").changed(OUT, {}, {}) == 2


def test_a_row_is_measured_by_all_rows_in_float32_and_by_itself_in_bfloat16():
    before = {OUT: np.float32([[1, 1, 1, 1], [7, 7, 7, 7]])}
    now = {OUT: np.float32([[1, 1, 1, 1.5], [7, 7, 7, 7]])}
    assert within("float32").apart(OUT, before, now) * 256 * 2.0**-23 == pytest.approx([0.05, 0])
    assert within("bfloat16").apart(OUT, before, now) * 3e-3 == pytest.approx([0.25, 0])


def test_a_quantised_caches_ties_widen_float32s_bound_alone():
    noise = SimpleNamespace(noisy=lambda stage: 1e-3, flips=True, flip_bound=lambda stage: 0.25)
    assert WithinNoise(declared(2, 1), "float32", noise).bound(OUT) == 0.25
    assert WithinNoise(declared(2, 1), "bfloat16", noise).bound(OUT) == pytest.approx(3e-3)


def test_what_is_missing_or_of_another_shape_or_dtype_is_one_row_infinitely_off():
    same, one = within("float32"), rows(0, 0)
    for before, now in (({}, {OUT: one}), ({OUT: one}, {}), ({OUT: one}, {OUT: one[:1]}), ({OUT: one[:1]}, {OUT: one})):
        assert same.apart(OUT, before, now).tolist() == [np.inf] and same.changed(OUT, before, now) == 0
    assert same.apart(OUT, {OUT: one}, {OUT: one.astype(np.float64)}).tolist() == [np.inf]
    assert same.apart(OUT, {OUT: one[:0]}, {OUT: one[:0]}).tolist() == []
    assert same.changed(OUT, {OUT: one[:0]}, {OUT: one[:0]}) is None


def test_a_difference_is_said_in_the_precisions_unit():
    assert within("float32").said(OUT, 0.5) == "1.3e+02 ULP (bound 256)"
    assert within("bfloat16").said(OUT, 0.5) == "1.5x noise (bound 3)"
    assert (within("float32").unit(OUT), within("bfloat16").unit(OUT)) == (2.0**-23, 1e-3)


def test_a_row_of_zeros_is_off_by_its_own_size_in_bfloat16():
    same, zero = within("bfloat16"), {OUT: np.zeros((2, 4), np.float32)}
    now = {OUT: np.float32([[0, 0, 0, 0], [0, 0.006, 0, 0]])}
    assert same.apart(OUT, zero, now) == pytest.approx([0, 2])
    lost = {OUT: np.float32([[0, np.nan, 0, 0], [0, -np.inf, 0, 0]])}
    assert same.apart(OUT, zero, lost).tolist() == [np.inf, np.inf]


def test_the_same_values_that_are_no_numbers_have_no_size():
    same, before = within("bfloat16"), {OUT: np.float32([[np.nan, np.inf, -np.inf, 1]])}
    for last, far in ((1.0029, None), (1.0031, 0)):
        assert same.changed(OUT, before, {OUT: np.float32([[np.nan, np.inf, -np.inf, last]])}) is far
    small = {OUT: np.float32([[0.01, 0, 0, 0]])}
    assert same.changed(OUT, small, {OUT: np.float32([[0.01, 0.001, 0, 0]])}) == 0
    masked = np.float32([[0.01, 0.006, -np.inf, -np.inf]])
    before = {LOGITS: masked, TOKENS: np.array([0])}
    assert same.changed(TOKENS, before, {LOGITS: masked, TOKENS: np.array([1])}) == 0


SCORED = np.float32([[4, 3, 2, 1], [4, 4, 2, 1], [4, 3.99, 2, 1]])
"""The first row is certain, the second a tie, the third within seven times a noise of 0.01, and no tie."""


@pytest.mark.parametrize(
    ("precision", "noisy", "differs"),
    [("bfloat16", 0.0, [1, 0, 0]), ("bfloat16", 3e-3, [1, 0, 0]), ("float32", 0.0, [1, 0, 1])],
)
def test_another_choice_is_explained_row_by_row(precision, noisy, differs):
    noise = SimpleNamespace(noisy=lambda stage: noisy, flips=False, flip_bound=lambda stage: 0.0)
    same = WithinNoise(declared(2, 1), precision, noise)
    before = {LOGITS: SCORED, TOKENS: np.array([0, 0, 0])}
    apart = same.apart(TOKENS, before, {LOGITS: SCORED, TOKENS: np.array([1, 1, 1])})
    assert apart.tolist() == [np.inf if far else 0 for far in differs]
    sets = {ROUTER: SCORED, EXPERTS: np.array([[0, 3]] * 3)}
    assert same.apart(EXPERTS, sets, {EXPERTS: np.array([[3, 1]] * 3)}).tolist() == apart.tolist()
    assert same.apart(EXPERTS, sets, {EXPERTS: np.array([[3, 0]] * 3)}).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("gap", "far"), [(0.9, 0.0), (1.1, np.inf)])
def test_in_float32_either_score_may_be_off_by_its_bound(gap, far):
    scores = np.float32([[100.0, 100.0, 0, 0]])
    scores[0, 1] -= np.float32(gap * 2 * 256 * 2.0**-23 * np.sqrt((scores**2).mean()))
    before = {LOGITS: scores, TOKENS: np.array([0])}
    assert within("float32").apart(TOKENS, before, {LOGITS: scores, TOKENS: np.array([1])}).tolist() == [far]


def test_with_flips_float32s_choices_are_judged_by_the_goldens_noise():
    noise = SimpleNamespace(noisy=lambda stage: 0.01, flips=True, flip_bound=lambda stage: 0.1)
    scores = np.float32([[100.0, 99.0, 0, 0], [100.0, 97.0, 0, 0]])
    before = {LOGITS: scores, TOKENS: np.array([0, 0])}
    apart = WithinNoise(declared(2, 1), "float32", noise).apart(TOKENS, before, {TOKENS: np.array([1, 1])})
    assert apart.tolist() == [0, np.inf]


@pytest.mark.parametrize("token", [-1, 4, 9])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_id_without_a_score_is_never_explained_and_the_last_one_may_be(token, precision):
    flat = {LOGITS: np.ones((2, 4), np.float32), TOKENS: np.array([1, 1])}
    assert within(precision).apart(TOKENS, flat, {TOKENS: np.array([token, 3])}).tolist() == [np.inf, 0]
    assert within(precision).apart(TOKENS, flat, {TOKENS: np.array([0, 1])}).tolist() == [0, 0]


def test_choices_without_scores_of_the_same_rows_and_other_integers_are_compared_by_their_bits():
    same = within("bfloat16")
    assert same.apart(TOKENS, {TOKENS: np.array([1, 1])}, {TOKENS: np.array([1, 2])}).tolist() == [0, np.inf]
    short = {TOKENS: np.array([1, 1]), LOGITS: np.ones((1, 4), np.float32)}
    assert same.apart(TOKENS, short, {TOKENS: np.array([1, 2])}).tolist() == [0, np.inf]
    long = {TOKENS: np.array([1, 1]), LOGITS: np.ones((3, 4), np.float32)}
    assert same.apart(TOKENS, long, {TOKENS: np.array([1, 2])}).tolist() == [0, np.inf]
    ids, length = "drafter.input_ids", "kv.target.length"
    for stage in (ids, length):
        assert same.apart(stage, {stage: np.array([1, 1])}, {stage: np.array([1, 2])}).tolist() == [0, np.inf]


def test_drafts_are_judged_by_the_columns_that_won_then_and_now():
    """Ids of the target's vocabulary: 70 of the first column, 90 of the second."""
    scores = np.float32([[4, 4 - 1e-3, 0, 0], [4, 4 - 1e-3, 0, 0], [4, 2, 0, 0]])
    now = scores[:, [1, 0, 2, 3]]
    before = {DRAFT_LOGITS: scores, DRAFTS: np.array([70, 70, 70])}
    apart = within("bfloat16").apart(DRAFTS, before, {DRAFT_LOGITS: now, DRAFTS: np.array([90, 70, 90])})
    assert apart.tolist() == [0, 0, np.inf]


def test_the_choices_among_what_a_verb_hands_over_are_tokens_and_experts():
    stages = (LOGITS, TOKENS, EXPERTS, DRAFTS, "accept.emitted", "accept.length", "kv.target.length")
    assert list(chosen(declared(2, 1), dict.fromkeys(stages, np.zeros(1)))) == [TOKENS, EXPERTS, DRAFTS]


def test_the_first_row_of_other_bits_is_told():
    one = np.arange(6, dtype=np.float32).reshape(3, 2)
    late = one.copy()
    late[1:, 1] = -1
    assert changed_row(one, one.copy()) is None and changed_row(one, late) == 1
    assert changed_row(one, one[:2]) == changed_row(one, one.astype(np.float64)) == 0
    assert changed_row(one[:0], one[:0]) is None
    assert changed_row(np.float32([0.0, np.nan]), np.float32([-0.0, np.nan])) == 0
    assert changed_row(one.T, one.copy().T) is None


def test_bits_are_compared_of_a_stage_that_is_there_and_one_that_is_not_has_changed():
    bits, one = BitExact(), {OUT: rows(0, 0)}
    assert bits.changed(OUT, one, {OUT: rows(0, 3e-8)}) is None and bits.changed(OUT, one, {OUT: rows(0, 2e-7)}) == 1
    assert bits.changed(OUT, one, {}) == 0 and not bits.forces and within("float32").forces


@pytest.mark.parametrize(
    ("result", "verdict", "said"),
    [
        (RepeatResult(3, 40, 2, "target.layers.0.q", (0.5, OUT), None), "pass",
         "it does not: 2 of 40 tensors have other bits when the same verbs are called again; first at "
         f"target.layers.0.q; worst row 1.3e+02 ULP (bound 256) at {OUT}; "
         "a verb called again is judged by that bound, not by bits"),
        (RepeatResult(3, 40, 2, OUT, (1.0, OUT), None), "pass",
         f"it does not: 2 of 40 tensors have other bits when the same verbs are called again; first at {OUT}; "
         f"worst row 2.6e+02 ULP (bound 256) at {OUT}; a verb called again is judged by that bound, not by bits"),
        (RepeatResult(3, 40, 2, OUT, (1.5, OUT), Place(OUT, 0, 1, 1, 7)), "fail",
         f"it does not: 2 of 40 tensors have other bits when the same verbs are called again; first at {OUT}; "
         f"worst row 3.8e+02 ULP (bound 256) at {OUT}: that is no rounding"),
        (RepeatResult(3, 40, 1, TOKENS, (np.inf, TOKENS), Place(TOKENS, None, 1, 1, 7)), "fail",
         "it does not: 1 of 40 tensors have other bits when the same verbs are called again; first at verify.tokens; "
         "worst row verify.tokens is another choice or shape: that is no rounding"),
    ],
)  # fmt: skip
def test_a_device_that_does_not_repeat_itself_is_said_to_and_fails_beyond_its_bound(result, verdict, said):
    found = repeat_check(result, within("float32"))
    assert (found.verdict, found.evidence, found.place) == (verdict, said, result.place)
    assert found.figures == {
        "plays": 3, "tensors": 40, "differing": result.differing, "worst": result.worst[0], "stage": result.worst[1],
    }  # fmt: skip
    assert comparison_for(result, within("float32")) == within("float32") and not result.exact


def test_a_device_that_repeats_itself_or_could_not_be_asked_is_compared_by_its_bits():
    exact = RepeatResult(3, 40, 0, "", (0.0, ""), None)
    for result in (exact, None):
        assert isinstance(comparison_for(result, within("float32")), BitExact)
    found = not_repeated(DeviceFailed("toy", "draft", "no"), within("float32"))
    assert found.verdict == "inconclusive" and found.evidence.startswith("it could not be asked: ")
    assert repeat_check(exact, within("float32")).figures == {"plays": 3, "tensors": 40, "differing": 0, "worst": 0.0}
