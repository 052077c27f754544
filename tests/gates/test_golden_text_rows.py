"""The golden's text on a scripted device: which rows of the golden count, what is explained, and what is said."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.report import Place
from parity.compare.rows import StageRows
from parity.errors import Inconclusive
from parity.gates import lossless_golden_text as text
from parity.stages import declared
from tests.gates.scripted import EXPERTS, WIDTH, Scripted

IDS, EMITTED = (1, 2, 3), (5, 7, 8, 9)
STAGES = ("target.logits", "target.tokens", "verify.logits", "verify.tokens", EXPERTS[0])
NAMES = declared(2, 1)


def rows_of(stage: str) -> tuple[list[int], list[int]]:
    """Rounds and positions: three rows of prefill, and two rounds of three rows that emit two tokens and one."""
    return ([0] * 3, [0, 1, 2]) if stage == "target.logits" else ([1] * 3 + [2] * 3, [3, 4, 5, 5, 6, 7])


def logits_of(stage: str) -> np.ndarray:
    """The emitted token's logit is 4; rows that are not emitted hold 9 everywhere."""
    rounds, positions = rows_of(stage)
    logits = np.full((len(rounds), WIDTH), 9, np.float32)
    for row, (round_, position) in enumerate(zip(rounds, positions, strict=True)):
        if position >= 2 and position < (3, 5, 6)[round_]:
            logits[row] = np.eye(WIDTH, dtype=np.float32)[EMITTED[position - 2]] * 4
    return logits


@pytest.fixture
def golden(monkeypatch):
    """One prompt or two of the same text, its noise a thousandth of each logit but 0.01 in the last emitted row."""

    def make(prompts: int = 1, stages=STAGES, kv_cache=None, change=lambda stage, logits: logits):
        generated = SimpleNamespace(emitted=EMITTED, acceptance_length=(2, 1), accepted_drafts=(1, 0))
        case = [SimpleNamespace(id=f"p{n}", ids=IDS, generated=generated, generation=generated) for n in range(prompts)]

        def rows(golden, run, named, device, mode):
            assert (device, mode) == ("float32", "chained")
            logits, (rounds, positions) = change(named.name, logits_of(named.name)), rows_of(named.name)
            number = np.repeat(np.arange(prompts), len(rounds))
            many = [np.tile(np.array(one), prompts) for one in (rounds, positions)]
            return StageRows(named, np.tile(logits, (prompts, 1)), None, None, number, *many, noise=NOISE[named.name])

        monkeypatch.setattr(text, "stage_rows", rows)
        manifest = SimpleNamespace(
            stages=stages, case=SimpleNamespace(prompts=case, max_new_tokens=4, kv_cache=kv_cache)
        )
        return SimpleNamespace(manifest=manifest, declared=NAMES, folder="golden", contents=contents)

    return make


NOISE = {"target.logits": np.full(6, 0.001), "verify.logits": np.tile([0.002, 0.001, 0.5, 0.01, 0.5, 0.5], 2)}


def contents(variant, prompt, round_, name):
    """The golden's choices: tokens of every row, and experts, all of them [0, 1] but one row's of the second round."""
    assert variant == "float32"
    if name == "target.tokens":
        return np.array([11, 11, 5]) if round_ == 0 else None
    if name == "verify.tokens":
        return {1: np.array([7, 8, 1]), 2: np.array([9, 1, 1])}.get(round_)
    return np.tile([0, 1], (3, 1))


def plain(change=None, **changes) -> Scripted:
    """A device that says of every pass without drafts what the golden emits, or another token in these steps."""
    device = Scripted(EMITTED, **changes)
    told, before = change or {}, device._plain
    device._plain = lambda step: told.get(step, before(step))
    return device


def context_of(golden, device) -> SimpleNamespace:
    return SimpleNamespace(golden=golden, device=lambda precision: device, progress=lambda *of: None)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_device_that_says_the_same_is_counted_token_by_token(precision, golden):
    found = text.golden_text(context_of(golden(2), plain()), precision)
    assert (found.name, found.verdict) == (f"plain decoding = the golden's text, {precision}", "pass")
    assert found.evidence == "8 of 8 tokens the golden's, 0 bug; their logits off by 0 x noise"
    assert (
        found.figures == {"tokens": 8, "same": 8, "others": {}, "noise": 0.0, "unseen": 0, "lost": 0}
        and found.place is None
    )


@pytest.mark.parametrize(
    ("step", "token", "place"),
    [
        (0, 6, Place("target.tokens", None, 0, 0, 2)),
        (1, 10, Place("verify.tokens", None, 0, 1, 3)),
        (1, 6, Place("verify.tokens", None, 0, 1, 3)),
        (2, 6, Place("verify.tokens", None, 0, 1, 4)),
        (3, 6, Place("verify.tokens", None, 0, 2, 5)),
    ],
)
def test_another_token_is_a_bug_in_its_row_and_the_goldens_is_used_from_there_on(step, token, place, golden):
    found = text.golden_text(context_of(golden(), plain({step: token})), "bfloat16")
    assert found.verdict == "fail" and found.place == place
    assert found.figures["same"] == 3 and found.figures["others"] == {"bug": 1}


def test_of_two_prompts_the_first_bug_is_named(golden):
    found = text.golden_text(context_of(golden(2), plain({1: 6, 3: 6})), "bfloat16")
    assert found.place == Place("verify.tokens", None, 0, 1, 3) and found.figures["others"] == {"bug": 4}
    assert found.evidence.startswith("4 of 8 tokens the golden's, 4 bug; their logits off by ")


def test_tokens_whose_logits_are_hidden_are_counted_but_for_prefills(golden):
    found = text.golden_text(context_of(golden(), plain(hides=("verify.logits", "target.logits"))), "float32")
    assert found.verdict == "inconclusive" and found.figures["unseen"] == 3 and found.figures["noise"] == 0
    said = "the device showed no verify.logits of 3 tokens: give the tap those of every row"
    assert found.evidence == f"4 of 4 tokens the golden's, 0 bug; {said}"


def test_logits_of_more_than_noise_fail_though_every_token_is_right(golden):
    """Each of the four rows is off by 3 in one of 12 logits, and the noisiest of them by 0.01."""
    found = text.golden_text(context_of(golden(), plain(scores={step: {2: 3.0} for step in range(4)})), "bfloat16")
    off = [(9 / 12) ** 0.5 / noise for noise in (0.001, 0.002, 0.001, 0.01)]
    assert found.verdict == "fail" and found.place == Place("target.logits", None, 0, 0, 2)
    assert found.figures["noise"] == pytest.approx(np.sqrt(np.mean(np.square(off))))


def test_a_golden_without_logits_or_their_tokens_judges_nothing(golden):
    for lacks in ("target.logits", "target.tokens", "verify.logits", "verify.tokens"):
        kept = tuple(stage for stage in STAGES if stage != lacks)
        said = f"^golden holds no {lacks.split('.')[0]}.logits with its tokens: no choice can be judged by it$"
        with pytest.raises(Inconclusive, match=said):
            text.GoldenLogits(golden(stages=kept), "float32")


def test_only_rows_on_the_emitted_path_are_the_goldens(golden):
    truth = text.GoldenLogits(golden(2), "bfloat16")
    assert sorted(truth.rows) == [(prompt, position) for prompt in range(2) for position in range(6)]
    assert truth.off(1, 5, np.eye(WIDTH, dtype=np.float32)[9] * 4) == (0.0, Place("verify.logits", None, 1, 2, 5))
    with pytest.raises(Inconclusive, match=r"^the golden holds no logits of prompt 1, position 6$"):
        truth.judged(1, 6, 5, 5)


def test_the_error_of_a_row_is_its_rms_over_the_rows_own_noise(golden):
    truth, row = text.GoldenLogits(golden(), "bfloat16"), np.eye(WIDTH, dtype=np.float32)[7] * 4
    wrong = row.copy()
    wrong[3] = -0.012
    assert truth.off(0, 3, wrong)[0] == pytest.approx(0.012 / 12**0.5 / 0.002)
    for other in (row[:-1], np.where(row, np.nan, row), np.where(row, np.inf, row)):
        assert truth.off(0, 3, other) == (float("inf"), Place("verify.logits", None, 0, 1, 3))


def test_in_float32_a_rows_noise_is_rounding_of_its_own_size(golden):
    truth, row = text.GoldenLogits(golden(), "float32"), np.eye(WIDTH, dtype=np.float32)[7] * 4
    wrong = row.copy()
    wrong[3] = 0.001
    assert truth.off(0, 3, wrong)[0] == pytest.approx(0.001 / 12**0.5 / (1e-5 * 4 / 12**0.5))


STEP = 2.0**-5
"""One bfloat16 ULP of 4."""


@pytest.mark.parametrize(
    ("precision", "kv_cache", "gap", "verdict"),
    [
        ("bfloat16", None, STEP, "tie"),
        ("bfloat16", None, 1.01 * STEP, "bug"),  # seven times the row's noise are less
        ("float32", None, STEP, "bug"),  # of float32 a ULP of bfloat16 is far
        ("float32", None, 7 * 1.6e-5, "tie"),  # within seven times its rounding, 1.633e-5
        ("float32", None, 7 * 1.7e-5, "bug"),
        ("float32", "fp8_e4m3", STEP, "tie"),  # a quantised cache may keep either of two tied numbers
    ],
)
def test_a_choice_is_explained_by_the_goldens_own_row(precision, kv_cache, gap, verdict, golden):
    def near(stage, logits):
        logits[:, 6] = np.where(logits[:, 7] == 4, 4 - gap, logits[:, 6])
        return logits

    truth = text.GoldenLogits(golden(kv_cache=kv_cache, change=near), precision)
    assert truth.judged(0, 3, 7, 6) == (verdict, Place("verify.tokens", None, 0, 1, 3))


@pytest.mark.parametrize(("gap", "verdict"), [(0.69, "noise"), (0.71, "bug")])
def test_noise_of_a_row_explains_seven_times_as_much(gap, verdict, golden, monkeypatch):
    monkeypatch.setitem(NOISE, "verify.logits", np.full(6, 0.1))
    near = golden(change=lambda stage, logits: np.where(np.arange(WIDTH) == 6, 4 - gap, np.minimum(logits, 4)))
    assert text.GoldenLogits(near, "bfloat16").judged(0, 3, 7, 6)[0] == verdict


@pytest.mark.parametrize(
    ("token", "verdict"), [(-1, "bug"), (0, "tie"), (WIDTH - 1, "tie"), (WIDTH, "bug"), (WIDTH + 5, "bug")]
)
def test_only_an_id_of_the_vocabulary_ties(token, verdict, golden):
    flat = golden(change=lambda stage, logits: np.full_like(logits, 4))
    assert text.GoldenLogits(flat, "bfloat16").judged(0, 3, 7, token)[0] == verdict


def test_a_prompts_first_token_is_placed_in_its_prefill(golden):
    assert text.GoldenLogits(golden(), "bfloat16").judged(0, 2, 5, 6) == ("bug", Place("target.tokens", None, 0, 0, 2))


def test_the_device_is_led_by_the_goldens_tokens_and_experts_row_by_row(golden):
    forced, device = [], plain({1: 6, 2: 6, 3: 6})
    made = golden()
    made.contents = lambda *of: contents(*of) if of[-1] != EXPERTS[0] else np.arange(6).reshape(3, 2) + 10 * of[2]
    told = device._tap
    device._tap = lambda tap, stage, value: forced.append((stage, told(tap, stage, value))) or forced[-1][1]
    own, why = text._decode_along_golden(device, made, 0)
    assert why == ""
    assert [token for token, _ in own] == [5, 6, 6, 6] and [row.argmax() for _, row in own] == [5, 6, 6, 6]
    given = [value.tolist() for stage, value in forced if stage == EXPERTS[0]]
    assert given == [[[10, 11]], [[12, 13]], [[20, 21]]]
    assert [value.tolist() for stage, value in forced if stage == "verify.tokens"] == [[7], [8], [9]]


def test_a_prefill_in_several_passes_keeps_its_own_experts():
    seen = {}
    tap = text._MatchingShapeTap({"a.tokens": np.array([1, 2])}, seen.setdefault("kept", {"a.tokens"}).__contains__)
    assert tap("a.tokens", np.array([7])).tolist() == [7] and tap.seen["a.tokens"].tolist() == [7]
    assert tap("a.tokens", np.array([7, 8])).tolist() == [1, 2] and tap.seen["a.tokens"].tolist() == [7, 8]
    unkept = text._MatchingShapeTap({"b": np.array([1, 2])}, lambda stage: False)
    assert unkept("b", np.array([7])).tolist() == [7] and unkept("b", np.array([7, 8])).tolist() == [1, 2]
    assert unkept.seen == {}


HIDDEN = ("target.tokens", "verify.tokens")


def tied(golden, prompts: int = 1):
    """Every emitted token of the golden ties with token 6."""
    near = {"change": lambda stage, logits: np.where(np.arange(WIDTH) == 6, logits.max(1, keepdims=True), logits)}
    return golden(prompts, **near)


def near(step: int, **changes) -> Scripted:
    """A device that hands over no tokens, and whose tie tips in this step; its logits are the golden's."""
    scores = {each: {6: 4.0, token: 4.0} for each, token in enumerate(EMITTED)}
    return plain({step: 6}, hides=HIDDEN, scores=scores, **changes)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_device_that_hands_over_no_tokens_is_led_on_by_what_is_committed(step, golden):
    device, given = near(step), []
    commit = device.commit
    device.commit = lambda drafts, tokens, tap: given.append(list(tokens)) or commit(drafts, tokens, tap)
    found = text.golden_text(context_of(tied(golden), device), "bfloat16")
    assert (found.verdict, found.evidence) == (
        "pass", "3 of 4 tokens the golden's, 1 tie, 0 bug; their logits off by 0 x noise",
    )  # fmt: skip
    assert given == [[7], [8], [9]]


def test_another_token_of_a_device_that_hands_over_none_is_a_bug_all_the_same(golden):
    found = text.golden_text(context_of(golden(), plain({2: 6}, hides=HIDDEN)), "bfloat16")
    assert found.verdict == "fail" and found.place == Place("verify.tokens", None, 0, 1, 4)


LED = "by which the tap would lead it on with the golden's token"


def test_a_prompt_whose_prefill_goes_its_own_way_is_judged_up_to_there_and_no_pass(golden):
    found = text.golden_text(context_of(tied(golden, 2), near(0)), "bfloat16")
    said = f"prompt 0: prefill returns 6, the golden has 5, and the device hands over no target.tokens, {LED}"
    assert (found.verdict, found.figures["lost"], found.figures["tokens"]) == ("inconclusive", 6, 2)
    line = "0 of 2 tokens the golden's, 2 tie, 0 bug; their logits off by 0 x noise; 6 tokens not judged: "
    assert found.evidence == line + said
    found = text.golden_text(context_of(golden(), plain({0: 6}, hides=HIDDEN)), "bfloat16")
    assert found.verdict == "fail" and found.place == Place("target.tokens", None, 0, 0, 2)


def test_a_device_that_commits_its_own_token_is_judged_up_to_there_and_no_pass(golden):
    device = near(2)
    commit = device.commit
    device.commit = lambda drafts, tokens, tap: [6 if device.at == 3 else one for one in commit(drafts, tokens, tap)]
    found = text.golden_text(context_of(tied(golden), device), "bfloat16")
    said = f"prompt 0, round 1: commit is given 8 and emits [6], and the device hands over no verify.tokens, {LED}"
    assert found.verdict == "inconclusive" and found.evidence.endswith(f"; 1 tokens not judged: {said}")
    assert found.evidence.startswith("2 of 3 tokens the golden's, 1 tie, 0 bug")


@pytest.mark.parametrize("token", [6, 10])
def test_a_device_that_hands_over_tokens_and_goes_its_own_way_is_not_judged(token, golden):
    device = plain({2: token})
    verify = device.verify
    device.verify = lambda drafts, tap: verify(drafts, lambda stage, value: (tap(stage, value), value)[1])
    with pytest.raises(Inconclusive, match=rf"with the verify.tokens that a tap returns: {token}, led on with 8$"):
        text._decode_along_golden(device, golden(), 0)
    device = plain()
    commit = device.commit
    device.commit = lambda drafts, tokens, tap: [token if device.at > 2 else one for one in commit(drafts, tokens, tap)]
    with pytest.raises(Inconclusive, match=rf"^prompt 0, round 1: commit is given 8 and emits \[{token}\]$"):
        text._decode_along_golden(device, golden(), 0)


def test_tokens_and_experts_are_the_choices_of_a_pass(golden):
    assert list(text._golden_choices(golden(), 0, 1, "verify.tokens")) == ["verify.tokens", EXPERTS[0]]
    assert list(text._golden_choices(golden(), 0, 1, "target.tokens")) == [EXPERTS[0]]


def tapped(**seen) -> SimpleNamespace:
    return SimpleNamespace(seen={name.replace("_", "."): np.array(value) for name, value in seen.items()})


ROWS = np.eye(3)


def test_a_choice_is_the_last_rows_own_and_its_logits_are_a_pass_of_one_rows():
    own, logits = text._own_choice(tapped(target_tokens=[1, 2, 3], target_logits=ROWS), "target.tokens", 9, 9)
    assert own == 3 and logits.tolist() == [0, 0, 1]
    own, logits = text._own_choice(tapped(verify_tokens=[4], verify_logits=ROWS[:1]), "verify.tokens", 9, 9)
    assert own == 4 and logits.tolist() == [1, 0, 0]
    assert text._own_choice(tapped(verify_logits=ROWS), "verify.tokens", 9, 9) == (9, None)
    assert text._own_choice(tapped(verify_tokens=[4], verify_logits=ROWS[:0]), "verify.tokens", 9, 9) == (4, None)
    assert text._own_choice(tapped(target_logits=ROWS[:0]), "target.tokens", 9, 9) == (9, None)


PLACES = [Place("verify.logits", None, 0, 1, position) for position in range(4)]


@pytest.mark.parametrize(
    ("result", "verdict", "place", "line"),
    [
        (dict(verdicts={"tie": 1, "noise": 2}, off=[(3.0, PLACES[0])]), "pass", None,
         "7 of 9 tokens the golden's, 1 tie, 2 noise, 0 bug; their logits off by 3 x noise"),
        (dict(off=[(1.0, PLACES[0]), (4.5, PLACES[1]), (9.0, PLACES[2])]), "fail", PLACES[1],
         "7 of 9 tokens the golden's, 0 bug; their logits off by 5.8 x noise"),
        (dict(off=[(1.0, PLACES[0]), (3.5, PLACES[1])]), "pass", None,
         "7 of 9 tokens the golden's, 0 bug; their logits off by 2.6 x noise"),
        (dict(verdicts={"bug": 1}, first={"tie": PLACES[0], "bug": PLACES[3]}, off=[(9.0, PLACES[1])]), "fail",
         PLACES[3], "7 of 9 tokens the golden's, 1 bug; their logits off by 9 x noise"),
        (dict(off=[(float("nan"), PLACES[2])]), "fail", PLACES[2],
         "7 of 9 tokens the golden's, 0 bug; their logits off by nan x noise"),
        (dict(off=[(1.0, PLACES[0])], unseen=1), "inconclusive", None,
         "7 of 9 tokens the golden's, 0 bug; their logits off by 1 x noise; "
         "the device showed no verify.logits of 1 tokens: give the tap those of every row"),
        (dict(off=[(4.0, PLACES[0])], unseen=1), "fail", PLACES[0],
         "7 of 9 tokens the golden's, 0 bug; their logits off by 4 x noise; "
         "the device showed no verify.logits of 1 tokens: give the tap those of every row"),
    ],
)  # fmt: skip
def test_what_the_rows_come_to_is_said_and_the_first_row_beyond_is_placed(result, verdict, place, line):
    result = dict(rows=9, same=7) | result
    if "verdicts" in result:
        result["verdicts"] = Counter(result["verdicts"])
    found = text._check(text.GoldenTextResult(**result), "float32")
    assert (found.verdict, found.place, found.evidence) == (verdict, place, line)
