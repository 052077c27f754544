"""Loops by hand: where two first part, in rounds, tokens and caches, and where a text parts from the golden's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.report import Place
from parity.errors import DeviceFailed, Inconclusive
from parity.gates import loops
from parity.gates.golden_tokens import GoldenTokens, TextResult, first_difference
from parity.gates.loops import SideBySide
from parity.gates.lossless_loop import LoopTexts, _plain, _verdict, speculation_check
from tests.gates.scripted import Scripted

IDS, TEXT = (1, 2, 3), (5, 7, 8, 9, 3, 2)


class OnePiece:
    """A loop that tells of these rounds, and returns what they emitted or something else."""

    def __init__(self, rounds, returned=None):
        self.told, self.returned = rounds, returned

    def describe(self):
        return SimpleNamespace(eos=())

    def speculate(self, ids, budget, tap, on_round):
        for drafts, emitted in self.told:
            on_round(drafts, emitted, None)
        return [token for _, emitted in self.told for token in emitted] if self.returned is None else self.returned


ROUNDS = [((), (5,)), ((7, 1), (7, 8)), ((9, 3), (9, 3, 2))]


def test_rounds_are_those_of_a_loop_and_of_verbs_called_one_by_one():
    assert loops.rounds_of(OnePiece(ROUNDS), IDS, 6) == ROUNDS
    assert loops.rounds_of(Scripted(TEXT, [[7, 1], [9, 3]]), IDS, 6) == ROUNDS
    assert loops.rounds_of(Scripted(TEXT, [[7, 1], [9, 3]], eos=(8,)), IDS, 6) == ROUNDS[:2]
    assert loops.rounds_of(Scripted(TEXT, [[7, 1], [9, 3]], eos=(5,)), IDS, 6) == ROUNDS[:1]
    assert loops.rounds_of(Scripted(TEXT, [[7, 1], [9, 3]]), IDS, 3) == ROUNDS[:2]
    assert loops.rounds_of(Scripted(TEXT, [[7, 1], [9, 3]]), IDS, 1) == ROUNDS[:1]
    assert loops.rounds_of(OnePiece(ROUNDS[:2], [5, 7]), IDS, 6) == [*ROUNDS[:2], ((), (5, 7))]


@pytest.mark.parametrize(
    ("said", "place", "what"),
    [
        ([*ROUNDS[:1], ((7, 2), (7, 8)), ((1,), (1,))], Place("drafter.draft_tokens", None, 4, 1),
         "round 1 of prompt 4 has drafts [7, 2], not [7, 1]"),
        ([*ROUNDS[:2], ((9, 3), (9, 3))], Place("accept.emitted", None, 4, 2),
         "round 2 of prompt 4 has [9, 3], not [9, 3, 2]"),
        ([((), (6,)), *ROUNDS[1:]], Place("accept.emitted", None, 4, 0), "round 0 of prompt 4 has [6], not [5]"),
        (ROUNDS[:2], Place("accept.emitted", None, 4, 2),
         "2 rounds in place of 3, or it returns other tokens than those of its rounds"),
        ([*ROUNDS, ((), (5,))], Place("accept.emitted", None, 4, 3),
         "4 rounds in place of 3, or it returns other tokens than those of its rounds"),
    ],
)  # fmt: skip
def test_the_first_round_that_is_another_one_is_named(said, place, what):
    assert loops._parted(4, ROUNDS, said) == (place, what)


def caches(**changes) -> dict[str, np.ndarray]:
    made = {f"kv.target.{layer}.k": np.arange(12, dtype=np.float32).reshape(3, 4) for layer in range(2)}
    return made | {name.replace("_", "."): value for name, value in changes.items()}


def compared(*pairs) -> SideBySide:
    seen = SideBySide()
    for number, (right, held) in enumerate(pairs):
        loops._compare_caches(seen, number, 3, right, held)
    return seen


def test_caches_are_compared_bit_by_bit_and_the_first_tensor_that_differs_is_told():
    seen = compared((caches(), caches()))
    assert (seen.tensors, seen.rows, seen.caches) == (2, 6, None)
    other = np.arange(12, dtype=np.float32).reshape(3, 4)
    other[1:, 3] = -1
    zeros = np.zeros((3, 4), np.float32)
    seen = compared(
        (caches(), caches()), (caches(), caches(kv_target_1_k=other)), (caches(), caches(kv_target_0_k=zeros))
    )
    place = Place("kv.target.1.k", None, 1, 2, 1)
    said = "2 of 3 rows of kv.target.1.k have other bits, the first one at position 1"
    assert seen.caches == (place, said) and (seen.tensors, seen.rows) == (6, 18)


@pytest.mark.parametrize("lacking", ["shape", "dtype", "old", "new"])
def test_a_cache_of_another_shape_or_dtype_or_of_one_loop_alone_differs(lacking):
    right, held = caches(), caches()
    shapes = {"shape": "[2, 4]", "dtype": "[3, 4]", "old": "[3, 4]", "new": "None"}[lacking]
    before = "None" if lacking == "old" else "[3, 4]"
    if lacking in ("old", "new"):
        del (right if lacking == "old" else held)["kv.target.0.k"]
    else:
        one = held["kv.target.0.k"]
        held["kv.target.0.k"] = one[:2] if lacking == "shape" else one.astype(np.float64)
    seen = compared((right, held), (right, held))
    wrong = f"kv.target.0.k is {shapes} in the asynchronous loop, {before} in the synchronous one"
    assert seen.caches == (Place("kv.target.0.k", None, 0, 2), wrong) and (seen.tensors, seen.rows) == (4, 6)


def test_a_value_of_other_bits_that_is_equal_differs():
    zero = np.zeros((2, 1), np.float32)
    assert compared(({"kv": zero}, {"kv": -zero})).caches[0].position == 0
    assert compared(({"kv": zero * np.nan}, {"kv": zero * np.nan})).caches is None


def context_of(count: int, **more) -> SimpleNamespace:
    prompts = [SimpleNamespace(ids=(1,) * length) for length in [5, 2, 9, 4, 7, 3, 8, 6][:count]]
    case = SimpleNamespace(prompts=prompts, max_new_tokens=6, k=2)
    return SimpleNamespace(golden=SimpleNamespace(manifest=SimpleNamespace(case=case)), **more)


@pytest.mark.parametrize(("count", "lengths"), [(8, [2, 4, 6, 9]), (4, [2, 4, 5, 9]), (3, [2, 5, 9]), (1, [5])])
def test_the_shortest_and_the_longest_prompts_are_among_those_compared(count, lengths):
    chosen = loops._chosen(context_of(count))
    assert [len(prompt.ids) for _, prompt in chosen] == lengths
    assert [len(context_of(count).golden.manifest.case.prompts[number].ids) for number, _ in chosen] == lengths


def beside(waiting, ahead, times: int = 1) -> SideBySide:
    seen = SideBySide()
    for number in range(times):
        loops._compare(seen, number, SimpleNamespace(ids=IDS), context_of(1), waiting, ahead)
    return seen


HIDDEN = "the device does not show its caches behind a loop (parity.seam.Inspectable)"


def test_two_loops_are_played_and_counted_and_what_they_do_not_show_is_said():
    seen = beside(Scripted(TEXT, [[7, 1], [9, 3]]), OnePiece(ROUNDS), 2)
    assert (seen.prompts, seen.rounds, seen.tokens, seen.unseen) == (2, 6, None, [HIDDEN] * 2)
    assert seen.texts == {0: list(TEXT), 1: list(TEXT)}
    tokens, held = loops._tokens(seen, "float32"), loops._caches(seen, "float32")
    assert (tokens.name, tokens.verdict, tokens.exact) == ("the same rounds, float32", "pass", True)
    assert tokens.evidence == "2 prompts, 4 rounds: drafts and tokens of both loops"
    assert tokens.figures == {"prompts": 2, "rounds": 4} and not loops._tokens(seen, "bfloat16").exact
    assert (held.verdict, held.evidence) == ("not judged", HIDDEN)


def test_the_first_prompt_that_parts_is_told_and_a_loop_that_does_not_repeat_itself_accuses_nobody():
    seen = beside(OnePiece(ROUNDS), OnePiece(ROUNDS[:2]), 2)
    check = loops._tokens(seen, "float32")
    assert check.verdict == "fail" and check.place == Place("accept.emitted", None, 0, 2)
    assert check.evidence.startswith("2 rounds in place of 3, or ") and ";" not in check.evidence
    waiting = OnePiece(ROUNDS)
    speculate, times = waiting.speculate, iter(range(9))
    waiting.speculate = lambda ids, budget, tap, over: speculate(ids, budget, tap, over) and [5, next(times)]
    check = loops._tokens(beside(waiting, OnePiece(ROUNDS)), "float32")
    assert check.verdict == "inconclusive"
    assert check.evidence.endswith("; the synchronous loop gives other tokens when it is run again")


@pytest.mark.parametrize(
    ("seen", "verdict", "said"),
    [
        (SideBySide(tensors=4, rows=9), "pass", "4 tensors, 9 rows behind the last round: bit for bit"),
        (SideBySide(), "not judged", "the device shows no caches"),
        (SideBySide(tokens=(None, "")), "not judged", "no prompt gave the same rounds"),
        (SideBySide(unseen=["one", "two", "one"]), "not judged", "one; two"),
        (SideBySide(tensors=4, caches=(Place("kv", None, 0, 1), "other bits")), "fail", "other bits"),
    ],
)
def test_what_caches_come_to_is_said(seen, verdict, said):
    check = loops._caches(seen, "bfloat16")
    assert (check.verdict, check.evidence, check.exact) == (verdict, said, False)
    assert loops._caches(seen, "float32").exact == (verdict == "pass")


def test_only_in_float32_is_the_text_the_goldens(monkeypatch):
    seen = SideBySide(texts={0: [1]})
    assert loops._text(seen, None, "bfloat16").verdict == "not judged"
    found = TextResult(3, 2, 30, place=Place("kv", None, 0, 1), said="wrong")
    monkeypatch.setattr(loops, "GoldenTokens", lambda golden, precision: SimpleNamespace(beside=lambda texts: found))
    check = loops._text(seen, context_of(1), "float32")
    assert (check.verdict, check.place, check.exact) == ("fail", found.place, True)
    assert check.figures == {"prompts": 3, "same": 2, "others": {}}
    found.place = None
    assert loops._text(seen, context_of(1), "float32").verdict == "pass"


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [("abc", "abd", 2), ("abc", "xbd", 0), ("ab", "abc", 2), ("abc", "ab", 2), ("abc", "abc", 3), ("", "a", 0)],
)
def test_texts_part_at_their_first_other_token_or_the_shorter_ones_end(one, other, place):
    assert first_difference(one, other) == place


JUDGED = Place("verify.tokens", None, 0, 1, 5)


def golden_tokens(verdict: str = "bug") -> tuple[GoldenTokens, list]:
    """Of two prompts that emit the same four tokens; what its logits were asked."""
    generated = SimpleNamespace(emitted=(1, 2, 3, 4), acceptance_length=(2, 1))
    prompts = [SimpleNamespace(ids=(7, 7), generated=generated)] * 2
    tokens = GoldenTokens(SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts))), "bfloat16")
    asked: list = []
    tokens.__dict__["_logits"] = SimpleNamespace(judged=lambda *of: asked.append(of) or (verdict, JUDGED))
    return tokens, asked


END = Place("accept.emitted", None, 1, 2)


@pytest.mark.parametrize(
    ("text", "tokens", "said", "place", "asked"),
    [
        ([1, 9, 3, 4], 2, "prompt 1, token 1: the golden's 2 is 9 here", JUDGED, [(1, 2, 2, 9)]),
        ([9, 2, 3, 4], 1, "prompt 1, token 0: the golden's 1 is 9 here", JUDGED, [(1, 1, 1, 9)]),
        ([1, 2, 3, 9], 4, "prompt 1, token 3: the golden's 4 is 9 here", JUDGED, [(1, 4, 4, 9)]),
        ([1, 2], 3, "prompt 1, token 2: the golden's 3 is its end here", END, []),
        ([1, 2, 3, 4, 5], 4, "prompt 1, token 4: the golden's its end is 5 here", END, []),
    ],
)
def test_the_first_other_token_of_a_text_is_judged_and_told(text, tokens, said, place, asked):
    golden, seen = golden_tokens()
    found = golden.beside({0: [1, 2, 3, 4], 1: text})
    assert (found.texts, found.same, found.tokens) == (2, 1, 4 + tokens)
    assert (found.said, found.place, seen) == (said, place, asked) and found.verdicts == {"bug": 1}
    assert found.evidence == f"1 of 2 prompts the golden's text, {4 + tokens} tokens; {said}"


def test_a_tie_is_counted_and_places_nothing_and_the_first_bug_stays():
    golden, _ = golden_tokens("tie")
    found = golden.beside({0: [1, 9, 3, 4], 1: [1, 2, 9, 4]})
    assert found.place is None and found.evidence == "0 of 2 prompts the golden's text, 5 tokens; 2 part at a tie"
    found = golden_tokens()[0].beside({0: [1, 9], 1: [9, 2]})
    assert found.said == "prompt 0, token 1: the golden's 2 is 9 here" and found.verdicts == {"bug": 2}


def test_a_text_is_held_as_far_as_it_goes():
    golden, _ = golden_tokens()
    assert [golden.holds(0, text) for text in ([], [1, 2], [1, 2, 3, 4], [1, 3], [1, 2, 3, 4, 5])] == [
        True, True, True, False, False,
    ]  # fmt: skip


def speculated(precision: str, free: dict, plain: dict, accepted: int = 3, holds: bool = True, bug: bool = False):
    parted = {n: first_difference(free[n], plain[n]) for n in free if free[n] != plain[n]}
    asked: list = []

    def beside(texts):
        asked.append(sorted(texts))
        return TextResult(place=JUDGED if bug and len(asked) == 2 else None)

    golden = SimpleNamespace(beside=beside, holds=lambda number, text: holds or number != 2)
    return speculation_check(LoopTexts(free, plain, accepted, parted), golden, precision), asked


SAME = {0: [1, 2, 3], 1: [4, 5], 2: [6, 7]}


def test_a_loop_that_says_the_same_with_drafts_and_without_passes_once_a_draft_was_accepted():
    check, _ = speculated("float32", SAME, SAME)
    assert (check.verdict, check.evidence) == ("pass", "3 of 3 prompts the same, 7 tokens, 3 accepted drafts")
    assert check.figures == {"prompts": 3, "same": 3, "tokens": 7, "accepted_drafts": 3} and check.place is None
    check, _ = speculated("float32", SAME, SAME, accepted=0)
    assert check.verdict == "inconclusive"
    assert check.evidence.endswith("0 accepted drafts; no draft was ever accepted: losslessness was not tried")


OTHER = SAME | {1: [4, 9], 2: [6, 7, 8]}


@pytest.mark.parametrize(
    ("precision", "more", "verdict", "why"),
    [
        ("float32", {}, "fail", ""),
        ("bfloat16", {}, "pass", "; tied in the golden's logits, or within their noise"),
        ("bfloat16", {"accepted": 0}, "inconclusive", "; tied in the golden's logits, or within their noise"),
        ("bfloat16", {"holds": False}, "inconclusive", "; no logits are seen that explain it"),
        ("bfloat16", {"bug": True}, "inconclusive", "; no logits are seen that explain it"),
    ],
)
def test_the_first_place_where_a_loop_parts_from_its_own_plain_decoding_is_told(precision, more, verdict, why):
    check, asked = speculated(precision, OTHER, SAME, **more)
    line = f"1 of 3 prompts the same, 7 tokens, {more.get('accepted', 3)} accepted drafts"
    assert (check.verdict, check.evidence) == (verdict, f"{line}; prompt 1, token 1: 9, plain decoding has 5{why}")
    assert check.place == Place("accept.emitted", None, 1, 1) and check.figures["same"] == 1
    assert asked == ([] if precision == "float32" else [[1, 2]] * 2)


def test_a_text_that_ends_where_the_other_goes_on_is_told_by_its_end():
    check, _ = speculated("float32", SAME | {1: [4]}, SAME)
    assert check.evidence.endswith("; prompt 1, token 1: its end, plain decoding has 5")
    check, _ = speculated("float32", SAME | {1: [4, 5, 6]}, SAME)
    assert check.evidence.endswith("; prompt 1, token 2: 6, plain decoding has its end")


def test_what_parts_from_the_golden_fails_in_float32_alone():
    bad = TextResult(place=JUDGED)
    assert [_verdict(*of) for of in ((TextResult(), "bfloat16"), (bad, "float32"), (bad, "bfloat16"))] == [
        "pass", "fail", "inconclusive",
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "ends"), [([5, 7], False), ([5, 9], True), ([5, 7, 8], True), ([5, 7, 8, 1], False),
                                            ([], False)])  # fmt: skip
def test_plain_decoding_ends_at_its_budget_or_an_end_token(text, ends):
    device = SimpleNamespace(
        describe=lambda: SimpleNamespace(eos=(9,), name="toy"), decode_plain=lambda ids, budget: np.array(text, int)
    )
    if ends:
        assert _plain(device, IDS, 3) == text
        return
    with pytest.raises(DeviceFailed, match=f"it ends after {len(text)} tokens of a budget of 3, and not by an end"):
        _plain(device, IDS, 3)


def test_a_golden_that_lacks_logits_leaves_the_text_of_a_loop_open(monkeypatch):
    def lacking(texts):
        raise Inconclusive("no logits")

    monkeypatch.setattr(loops, "GoldenTokens", lambda golden, precision: SimpleNamespace(beside=lacking))
    check = loops._text(SideBySide(), context_of(1), "float32")
    assert (check.verdict, check.evidence) == ("inconclusive", "no logits")
