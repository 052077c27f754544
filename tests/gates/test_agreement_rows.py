"""Verify against decode on a scripted device: which passes are made, what each row comes to, and what is said."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.report import Place
from parity.decode import Decoded, decode
from parity.errors import Inconclusive, NotOffered, UsageError
from parity.gates import verify
from parity.gates.verify_agreement import Agreement, DecodeCase, VerifyPass, accepting_passes, rejecting_passes
from tests.gates.scripted import EXPERTS, WIDTH, Scripted

IDS, TEXT = (1, 2, 3), (5, 7, 8, 9, 3, 2)
CASE = DecodeCase("toy", 2, IDS, len(TEXT))
LOGITS, TOKENS = "verify.logits", "verify.tokens"
NOISE = SimpleNamespace(
    flips=False,
    rms=lambda stage, scores: np.full(len(scores), 0.1 if stage == LOGITS else 0.2),
    noisy=lambda stage: 0.05,
    pooled=lambda stage: 0.1,
    crest=lambda stage: 4,
)


def watched(device: Scripted) -> list[tuple[list[int], list[int]]]:
    """The drafts of each pass, and the tokens that each commit is given."""
    calls, verify_, commit = [], device.verify, device.commit
    device.verify = lambda drafts, tap: calls.append((list(drafts), [])) or verify_(drafts, tap)
    device.commit = lambda drafts, tokens, tap: calls[-1][1].extend(tokens) or commit(drafts, tokens, tap)
    return calls


@pytest.mark.parametrize(
    ("drafts", "phase", "passes"),
    [
        (2, 0, [(0, 3, 2), (3, 2, 1)]),
        (2, 1, [(0, 2, 1), (2, 3, 2)]),
        (3, 2, [(0, 3, 2), (3, 2, 1)]),
        (4, 0, [(0, 5, 4)]),
        (9, 0, [(0, 5, 4)]),
        (0, 0, [(step, 1, 0) for step in range(5)]),
    ],
)
def test_passes_of_true_drafts_meet_every_row_once(drafts, phase, passes):
    device = Scripted(TEXT)
    plain = decode(device, IDS, len(TEXT))
    calls = watched(device)
    made = list(accepting_passes(device, CASE, plain, drafts, phase))
    assert [(one.first, one.rows, one.drafts) for one in made] == passes
    assert [one.tokens.tolist() for one in made] == [list(TEXT[a + 1 : a + 1 + n]) for a, n, _ in passes]
    assert [[given, tokens] for given, tokens in calls] == [
        [list(TEXT[a + 1 : a + n]), list(TEXT[a + 1 : a + 1 + n])] for a, n, _ in passes
    ]


@pytest.mark.parametrize(
    ("drafts", "true", "behind", "given"),
    [
        (2, 0, 1, [1, 1]),  # behind one pass of three rows two tokens are left
        (2, 1, 1, [3, 1]),
        (4, 1, 0, [7, 1, 1, 1]),
        (4, 3, 0, [7, 8, 9, 1]),
        (3, 0, 1, [1, 1, 1]),
        (2, 2, 1, [2]),  # the plain text has no third row there
        (2, 0, 2, [2, 1]),  # nor any behind two passes
        (2, 0, 3, [2, 1]),
        (3, 0, 2, [3, 0]),
        (4, 3, 1, [4]),
    ],
)
def test_a_rejecting_pass_has_so_many_true_drafts_and_then_another_token_of_the_text(drafts, true, behind, given):
    device = Scripted(TEXT)
    plain = decode(device, IDS, len(TEXT))
    calls = watched(device)
    made = list(rejecting_passes(device, CASE, plain, drafts, true, behind))
    if not made:
        assert [len(one) for one, _ in calls] == given
        return
    (one,) = made
    assert calls[-1] == (given, []) and len(calls) == behind + 1
    assert (one.first, one.rows, one.drafts) == (sum(len(tokens) for _, tokens in calls), true + 1, drafts)


def test_another_token_is_one_that_the_first_rejected_draft_is_not():
    device = Scripted(TEXT)
    plain, calls = decode(device, IDS, len(TEXT)), watched(device)
    for other in (7, 9):
        list(rejecting_passes(device, DecodeCase("toy", 0, (8, other, 16 - other), 6), plain, 2, 1, 0))
        assert calls[-1][0] == [7, other]
    assert list(rejecting_passes(device, DecodeCase("toy", 0, (8, 8), 6), plain, 2, 1, 0)) == []


def test_a_device_that_does_not_repeat_itself_or_does_not_emit_is_no_evidence():
    device = Scripted(TEXT)
    plain = decode(device, IDS, len(TEXT))
    device.text[0] = 6
    with pytest.raises(Inconclusive, match=r"^toy: prefill gave 5 once and 6 the next time$"):
        list(accepting_passes(device, CASE, plain, 2))
    device.text[0] = 5
    device.commit = lambda drafts, tokens, tap: list(tokens[:1])
    with pytest.raises(Inconclusive, match=r"^toy: 2 accepted drafts emitted \[7\], not \[7, 8, 9\] \(see lossless\)$"):
        list(accepting_passes(device, CASE, plain, 2))
    device.hides = (LOGITS,)
    with pytest.raises(Inconclusive, match=r"hands over no verify.logits in verify"):
        list(accepting_passes(device, CASE, plain, 2))


def test_a_pass_continues_with_the_plain_experts_and_tokens_in_the_rows_that_repeat_some():
    device = Scripted(TEXT, wide={3: 6, 5: 6}, routes={(0, 3): [2, 3], (0, 5): [2, 3]})
    plain, given = decode(device, IDS, len(TEXT)), []
    told = device._tap
    device._tap = lambda tap, stage, value: given.append((stage, told(tap, stage, value))) or given[-1][1]
    first, second = accepting_passes(device, CASE, plain, 2)
    assert first.seen[EXPERTS[0]].tolist() == [[0, 1], [0, 1], [2, 3]] and first.seen[TOKENS].tolist() == [7, 8, 6]
    assert second.seen[EXPERTS[0]].tolist() == [[0, 1], [2, 3]] and second.seen[TOKENS].tolist() == [3, 6]
    forced = [[value.tolist() for stage, value in given if stage == one] for one in (EXPERTS[0], TOKENS)]
    assert forced == [[[[0, 1]] * 3, [[0, 1]] * 2], [[7, 8, 9], [3, 2]]]


def test_what_verify_returns_is_its_tokens_where_the_tap_saw_none():
    device = Scripted(TEXT, hides=(TOKENS,))
    first = next(accepting_passes(device, CASE, decode(device, IDS, len(TEXT)), 2))
    assert first.seen[TOKENS].tolist() == [7, 8, 9]


def agreed(precision: str, logits, tokens=None, experts=None, first=0, rows=None) -> Agreement:
    """Of five rows [3, 0, 0, 4] that choose 3 and experts [0, 1] of scores [3, 2, 1]: what a pass of them comes to."""
    plain = Decoded(
        (3,) * 6,
        {
            LOGITS: np.tile(np.float32([3, 0, 0, 4]), (5, 1)),
            "target.layers.0.router_logits": np.tile(np.float32([3, 2, 1]), (5, 1)),
            EXPERTS[0]: np.tile([0, 1], (5, 1)),
        },
    )
    logits = np.array(logits, np.float32)
    seen = {LOGITS: logits, TOKENS: np.full(len(logits), 3) if tokens is None else np.array(tokens)}
    seen |= {} if experts is None else {EXPERTS[0]: np.array(experts)}
    agreement = Agreement(precision, NOISE)
    agreement.add(VerifyPass(CASE, first, rows or len(logits), len(logits) - 1, seen, seen[TOKENS]), plain)
    return agreement


ROW = [3, 0, 0, 4]


def test_rows_of_another_shape_are_an_error():
    with pytest.raises(ValueError, match=r"verify.logits have shape \(2, 3\), decoded alone \(2, 4\)"):
        agreed("float32", [ROW[:3]] * 2)


def test_a_value_that_is_no_number_is_infinitely_wrong():
    for lost in (np.nan, np.inf, -np.inf):
        found = agreed("float32", [ROW, [3, lost, 0, 4]])
        assert found.errors == [0.0, np.inf] and found.verdict() == "fail" and found.places[1].row == 1


@pytest.mark.parametrize(
    ("precision", "error", "verdict"),
    [
        ("float32", 0.0, "pass"),
        ("float32", 0.1, "fail"),
        ("bfloat16", 0.1 * 2.5 * 1.4, "pass"),  # 1.4 times the noise of all rows
        ("bfloat16", 0.1 * 2.5 * 4, "fail"),
    ],
)
def test_rows_are_judged_by_the_precisions_own_bound(precision, error, verdict):
    found = agreed(precision, [[3, error, 0, 4 - error], [3, error, 0, 4 + error]])
    assert found.verdict() == verdict
    assert found.unit == ("relative" if precision == "float32" else "x noise") == found.figures()["unit"]


@pytest.mark.parametrize(
    ("precision", "token", "verdict", "said"),
    [
        ("float32", 3, "same", "2 same, 0 bug"),
        ("float32", 0, "bug", "1 same, 1 bug"),
        ("bfloat16", 0, "bug", "1 same, 1 bug"),  # 1 below, noise 0.1
        ("bfloat16", -1, "bug", "1 same, 1 bug"),
        ("bfloat16", 4, "bug", "1 same, 1 bug"),
    ],
)
def test_a_token_is_judged_by_the_row_decoded_alone(precision, token, verdict, said):
    found = agreed(precision, [ROW, ROW], [3, token], first=2)
    assert found.tokens == Counter(["same", verdict])
    assert found.evidence() == f"2 rows, 2 bit-equal, all 0, worst row 0 {found.unit}; tokens {said}; 0 expert flips"
    assert found.verdict() == ("pass" if verdict == "same" else "fail")
    if verdict == "bug":
        words, place = found.worst()
        assert words == "toy, 1 drafts, row 1, position 6" and place == Place(LOGITS, None, 2, 3, 6)


def test_a_token_within_noise_or_tied_is_explained_in_bfloat16_whichever_side_chose_it():
    for token, verdict in ((0, "noise"), (1, "tie"), (2, "bug")):
        plain = Decoded((3, 3), {LOGITS: np.array([[3.4, 4, 3.2, 4]], np.float32)})
        seen = {LOGITS: plain.rows[LOGITS], TOKENS: np.array([token])}
        for one in (plain, Decoded((3, token), plain.rows)):
            found = Agreement("bfloat16", NOISE)
            found.add(VerifyPass(CASE, 0, 1, 0, seen | {TOKENS: np.array([3 if one is not plain else token])}, 0), one)
            assert found.tokens == {verdict: 1}


@pytest.mark.parametrize(
    ("precision", "experts", "verdict", "said"),
    [
        ("float32", [1, 0], "same", "0 expert flips"),
        ("float32", [0, 2], "bug", "1 expert flips (1 bug)"),
        ("bfloat16", [0, 2], "noise", "1 expert flips (1 noise, 0 bug)"),  # 1 below, noise 0.2
        ("bfloat16", [1, 2], "bug", "1 expert flips (1 bug)"),
    ],
)
def test_experts_are_judged_as_sets_by_the_scores_of_the_row_decoded_alone(precision, experts, verdict, said):
    found = agreed(precision, [ROW, ROW, ROW], experts=[[0, 1], experts, [0, 1]], first=1)
    assert found.experts == Counter(["same", "same", verdict])
    assert found.evidence().endswith(f"tokens 3 same, 0 bug; {said}")
    if verdict == "bug":
        assert found.bug.row == 1 and found.figures()["experts"] == {"same": 2, "bug": 1}


def test_only_rows_that_repeat_one_are_looked_at():
    found = agreed("float32", [ROW, ROW, [9, 9, 9, 9]], [3, 3, 0], [[0, 1], [0, 1], [1, 2]], rows=2)
    assert found.figures()["rows"] == 2 and found.verdict() == "pass" and found.bug is None


def test_the_first_bug_is_named_before_a_worse_row_and_the_worst_row_where_there_is_none():
    found = agreed("bfloat16", [ROW, [3, 0, 0, 4.1], [3, 0, 0, 4.3], ROW], [3, 3, 3, 1])
    assert found.worst()[0] == "toy, 3 drafts, row 3, position 6"
    found = agreed("bfloat16", [ROW, [3, 0, 0, 4.1], [3, 0, 0, 4.3], ROW])
    assert found.worst()[0] == "toy, 3 drafts, row 2, position 5"
    assert found.bug is None and found.equal == 2


def test_the_first_of_two_bugs_in_a_pass_is_named():
    found = agreed("float32", [ROW] * 3, [3, 1, 0])
    assert found.bug.row == 1 and found.tokens == {"same": 1, "bug": 2}


def test_figures_in_multiples_of_noise_are_no_whole_numbers():
    found = agreed("bfloat16", [[3, 0, 0, 4.125]])
    assert found.statistics() == pytest.approx({"l2": 0.25, "worst_row": 0.5, "largest": 0.25})


def test_no_rows_say_nothing():
    found = Agreement("float32", NOISE)
    assert found.verdict() == "inconclusive"
    assert found.evidence() == "no row could be compared: every plain decoding ended at its first token"
    assert found.figures() == {"rows": 0, "bit_equal": 0, "unit": "relative", "tokens": {}, "experts": {}}
    check = verify._check("a name", found, "of something")
    assert (check.verdict, check.evidence, check.place) == ("inconclusive", found.evidence(), None)


def test_a_check_says_what_was_compared_and_its_worst_row_where_it_fails():
    check = verify._check("a name", agreed("float32", [ROW, ROW]), "of something")
    said = "2 rows, 2 bit-equal, all 0, worst row 0 relative; tokens 2 same, 0 bug; 0 expert flips"
    assert (check.verdict, check.evidence, check.place) == ("pass", f"of something: {said}", None)
    check = verify._check("a name", agreed("float32", [ROW, ROW], [3, 1]), "of something")
    assert check.verdict == "fail" and check.place == Place(LOGITS, None, 2, 1, 4)
    assert check.evidence.endswith("1 same, 1 bug; 0 expert flips; worst at toy, 1 drafts, row 1, position 4")


def context_of(device, lengths=(3,), new=6, k=2, build=None, **more) -> SimpleNamespace:
    prompts = [SimpleNamespace(id=f"p{n}", ids=tuple(range(1, 1 + length))) for n, length in enumerate(lengths)]
    case = SimpleNamespace(prompts=prompts, max_new_tokens=new, k=k)
    return SimpleNamespace(
        golden=SimpleNamespace(manifest=SimpleNamespace(case=case)),
        device=build or (lambda *precision, **options: device),
        progress=lambda *of: None,
        precision="bfloat16",
        **more,
    )


def test_prompts_are_chosen_evenly_and_decoded_so_far_as_a_boundary_of_32_rows():
    cases = verify._own_lengths(context_of(None, [3] * 6, new=48), 4)
    assert [(case.name, case.prompt, case.budget) for case in cases] == [(f"p{n}", n, 33) for n in (0, 1, 3, 4)]
    assert [case.budget for case in verify._own_lengths(context_of(None, new=7), 4)] == [7]


@pytest.mark.parametrize(
    ("longest", "room", "lengths"),
    [
        (31, 999, [31]),
        (30, 999, []),
        (64, 999, [31, 32, 33, 63, 64]),
        (200, 999, [31, 32, 33, 63, 64, 65, 127, 128, 129]),
        (200, 64 + 17, [31, 32, 33, 63, 64]),
        (200, 63 + 17, [31, 32, 33, 63]),
    ],
)
def test_the_longest_prompt_is_cut_around_each_padding_width_that_leaves_room(longest, room, lengths):
    device = SimpleNamespace(describe=lambda: SimpleNamespace(max_positions=room))
    cases = verify._edges(context_of(device, [5, longest, longest, 9]), device)
    assert [len(case.ids) for case in cases] == lengths and {case.prompt for case in cases} <= {1}
    assert all(case.name == f"p1 cut to {len(case.ids)}" and case.budget == 9 for case in cases)
    assert [case.ids[0] for case in cases] == [1] * len(lengths)


def plainly(device) -> Scripted:
    device.describe = lambda: SimpleNamespace(eos=(), name="scripted", max_positions=999)
    return device


LONG = tuple(int(token) for token in np.resize(TEXT, 12))


def test_every_k_is_tried_in_every_phase_and_each_number_of_true_drafts():
    device = plainly(Scripted(LONG))
    context = context_of(device, [3, 5], new=12)
    calls = watched(device)
    found = verify.rows_agree(context, NOISE, "float32")
    assert found.verdict == "pass" and found.name == "K+1 rows = K+1 decodes, float32"
    assert found.evidence.startswith("K 1, 2, 3, 2 prompts, lengths 3 to 5: ")
    # Of each prompt 11 rows in five walks (K = 1, and K = 2 in three phases), and 1 and 2 rows of rejecting passes;
    # of the first one 11 rows with three drafts.
    assert found.figures["rows"] == 2 * (4 * 11 + 1 + 2) + 11
    rejecting = [given for given, committed in calls if given and not committed]
    assert len(rejecting) == 4 and [len(given) for given in rejecting] == [2] * 4


def test_passes_of_every_k_in_every_phase_and_rejecting_ones_behind_one_or_two_are_asked_for(monkeypatch):
    made: list = []
    told = lambda *of, **more: made.append((of[1].prompt, *of[3:], *more.values())) or ()  # noqa: E731
    monkeypatch.setattr(verify, "accepting_passes", told)
    monkeypatch.setattr(verify, "rejecting_passes", told)
    found = verify.rows_agree(context_of(plainly(Scripted(LONG)), [3] * 6, new=12, k=3), NOISE, "float32")
    assert found.verdict == "inconclusive" and found.figures["rows"] == 0
    each = [(1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3), (3, 0, 1), (3, 1, 2), (3, 2, 1)]
    assert made == [(number, *one) for number in (0, 1, 3, 4) for one in each] + [(0, 4)]
    made.clear()
    verify.rows_agree(context_of(plainly(Scripted(LONG)), new=8, k=1), NOISE, "float32")
    assert made == [(0, 1, 0), (0, 1, 0, 1), (0, 2)]


def test_a_wider_pass_that_chooses_otherwise_fails_and_a_quantised_cache_is_judged_by_noise():
    device = plainly(Scripted(LONG, wide={4: 6}))
    found = verify.rows_agree(context_of(device, new=12), NOISE, "float32")
    assert found.verdict == "fail" and found.place.position == 3 + 3 and found.figures["unit"] == "relative"
    noise = SimpleNamespace(**vars(NOISE) | {"flips": True})
    found = verify.rows_agree(context_of(device, new=12), noise, "float32")
    assert found.verdict == "fail" and found.figures["unit"] == "x noise"


def test_a_k_that_is_refused_is_said_once_and_not_listed():
    device = plainly(Scripted(LONG))

    def build(precision=None, **options):
        if options:
            assert options == {"k": 3}
            raise UsageError("too many.")
        return device

    found = verify.rows_agree(context_of(device, new=12, build=build), NOISE, "float32")
    assert found.evidence.startswith("K 1, 2, 1 prompts, lengths 3 to 3; K 3 not checked: too many: ")


def batched(single, both):
    return lambda **options: both if options else single


@pytest.mark.parametrize(
    ("changes", "verdict", "bugs"),
    [
        ({}, "pass", (0, 0)),
        ({"wide": {4: 6}, "scores": {6: {6: 3.99}}}, "fail", (2, 0)),  # the first of both is named
        ({"wide": {4: 6}}, "fail", (2, 0)),
        ({"scores": {4: {6: 3.99}}}, "fail", (0, 0)),  # another row than the single sequence's, with and without drafts
    ],
)
def test_a_batch_is_compared_with_itself_and_with_the_single_sequence(changes, verdict, bugs):
    build = batched(plainly(Scripted(LONG)), plainly(Scripted(LONG, **changes)))
    found = verify.batch_agrees(context_of(None, [3] * 3, new=12, build=build), NOISE)
    own, across = found.figures["verify"], found.figures["against_batch_1"]
    assert found.verdict == verdict and (own["tokens"].get("bug", 0), across["tokens"].get("bug", 0)) == bugs
    assert (own["rows"], across["rows"]) == (22, 22) and found.name == "batch 2, bfloat16"
    assert (
        found.evidence.startswith("verify = decode: 22 rows, ") and "; batch 2 = batch 1: 22 rows, " in found.evidence
    )
    assert found.place == (None if verdict == "pass" else Place(LOGITS, None, 0, 4, 6))


def test_a_device_without_a_batch_is_not_checked():
    def build(**options):
        if options:
            raise NotOffered("no batch")
        return plainly(Scripted(LONG))

    found = verify.batch_agrees(context_of(None, build=build), NOISE)
    assert (found.verdict, found.evidence) == ("inconclusive", "not checked: no batch")


class Choosing(Scripted):
    """Chooses by the logits that the tap returns, the lowest of equal ones; or the highest in passes of some rows."""

    last = 99

    def prefill(self, ids, budget, tap):
        self.at = 1
        return self._tap(tap, "target.tokens", self._best(self._tap(tap, "target.logits", np.ones((len(ids), WIDTH)))))[
            -1
        ]

    def verify(self, drafts, tap):
        return self._tap(tap, TOKENS, self._best(self._tap(tap, LOGITS, np.zeros((len(drafts) + 1, WIDTH)))))

    def _best(self, logits):
        highest = len(logits[0]) - 1 - logits[:, ::-1].argmax(axis=1)
        return np.where(len(logits) >= self.last, highest, logits.argmax(axis=1))


def test_ties_are_shown_in_prefill_one_row_and_as_many_as_drafts():
    context = context_of(Choosing(TEXT), [9, 3], k=3, seed=0)
    found = verify.lowest_wins(context)
    assert (found.verdict, found.figures) == ("pass", {"rows": 4 * (8 + 1 + 4), "wrong": []})
    assert found.evidence == "52 rows of equal largest logits in prefill, 1 row and 4 rows"


def test_the_highest_of_equal_ids_is_counted_and_the_first_is_quoted():
    device = Choosing(TEXT)
    device.last = 4
    found = verify.lowest_wins(context_of(device, [3], k=3, seed=0))
    assert found.verdict == "fail" and found.figures["rows"] == 4 * (3 + 1 + 4)
    assert len(found.figures["wrong"]) == 16 and found.figures["wrong"][1].startswith("4 rows, row 1: ")
    assert found.evidence == f"16 of 32 rows take another; first {found.figures['wrong'][0]}"
    of = found.figures["wrong"][0].partition(": ")[2]
    token, columns = of.split(" of ")
    assert columns.endswith(f", {token}]") and columns.count(",") in (1, 2)


def test_a_device_that_chooses_by_its_own_logits_or_shows_none_is_not_judged_by_ties():
    found = verify.lowest_wins(context_of(Scripted((11,) * 6), [3], seed=0))
    assert found.verdict == "inconclusive" and "does not continue with the logits" in found.evidence
    found = verify.lowest_wins(context_of(Choosing(TEXT, hides=("target.logits",)), [3], seed=0))
    assert found.evidence == "not checked: the device hands over no target.logits in which rows could be made to tie"
