"""Choices of a run on a golden that samples, by hand: what they are taken again from, and the words."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.choices import BUG, NOISE, SAME, TIE, Choices
from parity.compare.sampling import judging
from parity.compare.sampling.judging import Choice, Replayed, _decisions, _scores, _verified, _vocabulary, replayed
from parity.errors import Inconclusive
from parity.seam import Sampling

PREFILL, DRAFTS, VERIFY = "target.tokens", "drafter.draft_tokens", "verify.tokens"
LOGITS = ("target.logits", "drafter.logits", "verify.logits")


def replay(*rows: tuple[int, int]) -> Replayed:
    """Of rows (sampled, close)."""
    made = Replayed(np.array([bool(one) for one, _ in rows]))
    made.close = np.array([bool(close) for _, close in rows])
    return made


def test_what_a_number_decides_is_no_bug_and_the_rest_stays_as_it_was():
    choices = Choices(np.array([SAME, BUG, BUG, BUG, SAME]), np.array([0.0, 5.0, 6.0, 7.0, 8.0]))
    settled = replay((1, 1), (1, 0), (1, 1), (0, 1), (0, 0)).settled(choices)
    assert settled.verdict.tolist() == [SAME, NOISE, TIE, BUG, SAME] and settled.regret.tolist() == [0, 0, 0, 7, 8]


@pytest.mark.parametrize(
    ("said", "unseen", "verdict", "note"),
    [
        ("", (), "pass", "old"),
        ("wrong by 0.1", (), "pass", "wrong by 0.1"),
        ("wrong by 0.1", (1, 2), "pass", "wrong by 0.1"),
        ("", (0,), "pass", "old"),
        ("", (0, 1, 2), "inconclusive", "2 of 9 rows were drawn from logits that are not shown"),
    ],
)
def test_other_tokens_drawn_from_what_is_not_shown_are_inconclusive(said, unseen, verdict, note, monkeypatch):
    monkeypatch.setattr(judging, "replace", lambda result, **more: SimpleNamespace(**vars(result) | more))
    made = replay((1, 0), (1, 0), (1, 0))
    made.said, made.unseen[[*unseen]] = said, True
    rows = SimpleNamespace(golden=np.array([1, 2, 3]), device=np.array([1, 0, 0]))
    told = made.told(SimpleNamespace(verdict="pass", note="old", rows=9), rows)
    assert (told.verdict, told.note) == (verdict, note)


@pytest.fixture
def taken(monkeypatch):
    """What `replayed` says of two prompts' rows; `made` are the decisions of a choice, by (prompt, round)."""
    asked = []

    def run(stage, made, draws=True, sampled=True):
        def decided(golden, run, choice, settings, numbers):
            asked.append((choice.prompt, choice.round, choice.tokens.tolist(), settings, numbers))
            return made.get((choice.prompt, choice.round))

        monkeypatch.setattr(judging, "_decisions", decided)
        asked.clear()
        known = {0: ("settings 0", "numbers 0"), 1: ("settings 1", "numbers 1")} if sampled else {}
        case = SimpleNamespace(draws=draws, sampled=known.get)
        rows = SimpleNamespace(
            named=SimpleNamespace(name=stage), golden=np.zeros(5), device=np.arange(10, 15),
            prompt=np.array([0, 0, 0, 1, 1]), round=np.array([1, 1, 2, 1, 1]),
        )  # fmt: skip
        return replayed(SimpleNamespace(manifest=SimpleNamespace(case=case)), None, rows), asked

    return run


class Made(SimpleNamespace):
    """A decision of a row."""

    def __str__(self) -> str:
        return self.said


def made(row: int, right: bool = True, close: bool = False, said: str = "said") -> Made:
    return Made(row=row, right=right, close=close, said=said)


def test_every_row_of_a_round_is_taken_again_by_its_prompts_numbers(taken):
    wrong = [made(1, False, said="first"), made(1), made(0, close=True)]
    found, asked = taken(VERIFY, {(0, 1): wrong, (0, 2): [made(0, False, said="second")], (1, 1): [made(1)]})
    assert asked == [
        (0, 1, [10, 11], "settings 0", "numbers 0"), (0, 2, [12], "settings 0", "numbers 0"),
        (1, 1, [13, 14], "settings 1", "numbers 1"),
    ]  # fmt: skip
    assert found.sampled.tolist() == [True] * 5 and found.wrong.tolist() == [False, True, True, False, False]
    assert found.close.tolist() == [True, False, False, False, False] and found.said == "first"
    assert not found.unseen.any()


def test_of_a_prefill_only_the_last_row_is_drawn(taken):
    found, asked = taken(PREFILL, {(0, 1): [made(0, False)], (0, 2): [made(0)]})
    assert [tokens for _, _, tokens, *_ in asked] == [[11], [12], [14]]
    assert found.sampled.tolist() == [False, True, True, False, True]
    assert found.wrong.tolist() == [False, True, False, False, False]
    assert found.unseen.tolist() == [False, False, False, False, True]


def test_nothing_is_taken_again_of_a_greedy_golden_or_a_stage_of_no_tokens(taken):
    assert taken(VERIFY, {}, draws=False)[0] is taken("verify.logits", {})[0] is None
    assert taken(VERIFY, {}, sampled=False)[0] is None


def dump(shown: dict[str, np.ndarray], precision="bfloat16", mode="chained", forced=(), **more) -> SimpleNamespace:
    """A golden or run of prompt 4 and round 1 that holds these stages of its own precision."""

    def contents(variant, prompt, round_, stage):
        return shown.get(stage) if (variant, prompt, round_) == (precision, 4, 1) else None

    case = SimpleNamespace(precision=precision, mode=mode, forced=forced)
    manifest = SimpleNamespace(case=case, model=SimpleNamespace(draft_vocabulary=more.get("vocabulary", ())))
    return SimpleNamespace(contents=contents, manifest=manifest, declared=more.get("declared", LOGITS), folder="g")


ONE, TWO = np.ones((2, 4), np.float32), np.full((2, 4), 2, np.float32)


@pytest.mark.parametrize(
    ("own", "true", "mode", "forced", "due"),
    [
        (ONE, TWO, "local", (LOGITS[2],), 2), (ONE, TWO, "chained", (LOGITS[2],), 1), (ONE, TWO, "local", (), 1),
        (ONE, None, "local", (LOGITS[2],), 1), (ONE, TWO[:1], "local", (LOGITS[2],), 1),
        (None, TWO, "local", (LOGITS[2],), None),
    ],
)  # fmt: skip
def test_logits_are_the_runs_and_the_goldens_where_they_were_forced(own, true, mode, forced, due):
    golden = dump({} if true is None else {LOGITS[2]: true}, "float32")
    run = dump({} if own is None else {LOGITS[2]: own.astype(np.float16)}, mode=mode, forced=forced)
    found = _scores(golden, run, LOGITS[2], 4, 1)
    assert due is None if found is None else (found == due).all() and found.dtype == np.float16


def test_verified_drafts_are_the_goldens_where_they_were_forced():
    golden, own = dump({DRAFTS: np.array([1, 2])}, "float32"), {DRAFTS: np.array([3, 4], np.int32)}
    forced, free = dump(own, forced=(DRAFTS,)), dump(own)
    assert _verified(golden, forced, 4, 1).tolist() == [1, 2] and _verified(golden, free, 4, 1).tolist() == [3, 4]
    assert len(_verified(golden, dump({}), 4, 1)) == 0


@pytest.mark.parametrize(("told", "tokens"), [((), [0, 1, 2]), ((7, 5, 9), [7, 5, 9]), ((7, 5), None), (None, None)])
def test_a_column_of_draft_logits_is_the_golden_s_token_or_its_own(told, tokens):
    golden = dump({}, vocabulary=told)
    if tokens is None:
        with pytest.raises(Inconclusive, match=r"^g does not say which token each of 3 columns of the draft"):
            _vocabulary(golden, 3)
    else:
        assert _vocabulary(golden, 3).tokens.tolist() == tokens


NUMBERS = np.full((3, 4, 3), 0.6, np.float32)
FLAT, DRAFTED = np.zeros((2, 4), np.float32), np.log(np.array([[0.7, 0.1, 0.1, 0.1]], np.float32))
"""Of flat logits 0.6 stands for token 2, of the drafter's for 0."""


def whats(stage: str, tokens, shown, settings=None, declared=LOGITS) -> list[tuple] | None:
    golden, run = dump({}, "float32", declared=declared), dump(shown)
    settings = settings or Sampling(temperature=1.0, rule="residual")
    found = _decisions(golden, run, Choice(stage, 4, 1, np.array(tokens)), settings, NUMBERS)
    return None if found is None else [(one.what, one.row, one.right) for one in found]


def test_a_prefills_token_and_drafts_are_drawn_from_their_own_logits():
    assert whats(PREFILL, [2], {LOGITS[0]: FLAT}) == [("target", 0, True)]
    assert whats(PREFILL, [1], {LOGITS[0]: FLAT}) == [("target", 0, False)]
    assert whats(DRAFTS, [0], {LOGITS[1]: DRAFTED}) == [("draft", 0, True)]
    assert whats(DRAFTS, [2], {LOGITS[1]: DRAFTED}) == [("draft", 0, False)]
    assert whats(PREFILL, [2], {}) is None and whats(PREFILL, [2.0], {LOGITS[0]: FLAT}) is None


def test_a_verified_draft_is_accepted_by_both_logits_and_replaced_by_what_is_left():
    """p / q of token 0 is 0.25 / 0.7, below 0.6: rejected; what is left are tokens 1 to 3 alike, 0.6 is token 2."""
    shown = {LOGITS[2]: FLAT, LOGITS[1]: DRAFTED, DRAFTS: np.array([0])}
    assert whats(VERIFY, [2, -1], shown) == [("accept", 0, True), ("replace", 0, True)]
    assert whats(VERIFY, [3, -1], shown) == [("accept", 0, True), ("replace", 0, False)]
    assert whats(VERIFY, [0, 2], shown) == [("accept", 0, False), ("target", 1, True)]
    assert whats(VERIFY, [2, -1], {name: x for name, x in shown.items() if name != LOGITS[1]}) is None
    match = Sampling(temperature=1.0, rule="match")
    assert whats(VERIFY, [2, -1], shown, match) == [("target", 0, True)]


def test_of_a_drafter_without_logits_or_without_drafts_the_target_alone_draws():
    """Its draft is certain: 0.6 is above p, so that it is replaced by another token."""
    shown = {LOGITS[2]: FLAT, DRAFTS: np.array([0])}
    assert whats(VERIFY, [2, -1], shown, declared=(LOGITS[0], LOGITS[2])) == [("accept", 0, True), ("replace", 0, True)]
    assert whats(VERIFY, [2], {LOGITS[2]: FLAT[:1]}) == [("target", 0, True)]
