"""Lossless on a scripted device: which row parts, what it is led back to, what is counted and said."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.choices import BUG, NOISE, TIE
from parity.compare.report import Place
from parity.decode import Decoded
from parity.errors import Inconclusive
from parity.gates import lossless, made_up
from parity.gates.lossless import ROUTER, TWO_ULP, AlignedRun, Divergence, align, classify_divergence
from tests.gates.scripted import EXPERTS, WIDTH, Scripted

IDS, TEXT = (1, 2, 3), (5, 7, 8, 9, 3, 2)


def aligned(device: Scripted, budget: int = len(TEXT)) -> AlignedRun:
    return align(device, 3, IDS, budget)[0]


def counts(run: AlignedRun) -> tuple[int, int, int, int]:
    return run.tokens, run.lost, run.rounds, run.drafts


def test_what_speculation_emits_is_counted_round_by_round():
    run = aligned(Scripted(TEXT, [[7, 1], [9, 3]]))
    assert counts(run) == (6, 0, 2, 3) and run.divergences == [] and run.wrong == ""


def test_drafts_behind_the_end_of_the_plain_text_are_not_compared():
    run = aligned(Scripted(TEXT, [[7, 8, 9, 1]], wide={4: 6}), budget=4)
    assert counts(run) == (4, 0, 1, 3) and run.divergences == []


def test_an_end_token_ends_both():
    run = aligned(Scripted(TEXT, [[7, 8], [9, 3]], eos=(8,)))
    assert counts(run) == (3, 0, 1, 2) and run.wrong == ""


@pytest.mark.parametrize(
    ("drafts", "step", "round_"), [([[7, 8], [3]], 1, 1), ([[7, 8], [3]], 3, 1), ([[7, 1], [9, 3]], 5, 2)]
)
def test_a_row_that_chooses_another_token_is_placed_and_led_back(drafts, step, round_):
    """The first row of a pass, its last one, and the last row of the text."""
    run = aligned(Scripted(TEXT, drafts, wide={step: 6}))
    assert run.tokens == 6 and run.lost == 0 and run.wrong == ""
    (one,) = run.divergences
    assert (one.prompt, one.step, one.round, one.position) == (3, step, round_, 3 + step - 1)
    assert (one.mine, one.theirs, one.flip) == (TEXT[step], 6, None)
    assert one.scores.tolist() == [4.0 if token == TEXT[step] else 0.0 for token in range(WIDTH)]


def test_rows_behind_a_wrong_draft_are_another_text():
    run = aligned(Scripted(TEXT, [[7, 1, 9], [9, 3]], wide={3: 6}))
    assert counts(run)[:2] == (6, 0) and [one.round for one in run.divergences] == [2]


def test_a_device_that_hands_no_tokens_to_the_tap_is_compared_by_what_it_returns_and_lost_where_it_parts():
    run = aligned(Scripted(TEXT, [[7, 8], [3]], wide={2: 6}, hides=("verify.tokens",)))
    assert counts(run) == (2, 4, 1, 1) and [(one.step, one.theirs) for one in run.divergences] == [(2, 6)]


def test_an_emission_that_is_not_the_rules_is_said_and_ends_the_prompt():
    device = Scripted(TEXT, [[7, 8], [3, 2]])
    commit = device.commit
    device.commit = lambda drafts, tokens, tap: commit(drafts, tokens, tap)[: 2 if len(drafts) else 1]
    run = aligned(device)
    assert run.wrong == "prompt 3, round 1: drafts [7, 8], chosen [7, 8, 9]: emitted [7, 8], not [7, 8, 9]"
    assert counts(run) == (3, 3, 1, 2)


def test_a_prefill_that_gives_another_token_the_next_time_is_no_evidence():
    device, times = Scripted(TEXT, [[7]]), iter((5, 6))
    prefill = device.prefill
    device.prefill = lambda *given: prefill(*given) and next(times)
    with pytest.raises(Inconclusive, match=r"^prompt 3: prefill gave 5 once and 6 next$"):
        aligned(device)


@pytest.mark.parametrize(
    ("routes", "flip"),
    [
        ({}, None),
        ({(0, 3): [1, 0]}, None),  # the same two in another order
        ({(1, 3): [0, 2]}, (1, 2, [0, 2])),
        ({(0, 4): [0, 2], (1, 4): [1, 2]}, (0, 3, [0, 2])),
        ({(0, 4): [0, 2], (1, 3): [1, 2]}, (1, 2, [1, 2])),
        ({(0, 1): [2, 1], (1, 4): [1, 2]}, (0, 0, [2, 1])),
        ({(0, 5): [0, 2]}, None),  # behind the row that parts
    ],
)
def test_the_first_flip_by_row_and_then_by_layer_is_the_divergences(routes, flip):
    """Two rounds: of the first one token comes out, and its rows behind a wrong draft are other experts' too."""
    run = aligned(Scripted(TEXT, [[1, 1], [8, 9, 3]], wide={4: 6}, routes=routes))
    (one,) = run.divergences
    assert (one.step, one.round) == (4, 2)
    found = one.flip and (EXPERTS.index(one.flip[0]), one.flip[1], one.flip[2].tolist())
    assert found == flip


def test_experts_are_compared_as_sets_in_the_rows_that_there_are():
    mine = np.array([[1, 2], [1, 2], [2, 1], [1, 2]])
    assert lossless._others(mine, np.array([[0, 1], [1, 3], [1, 2]])).tolist() == [0, 1]


def divergence(mine=3, theirs=5, scores=None, flip=None) -> Divergence:
    row = np.zeros(64, np.float32)
    for token, score in (scores or {}).items():
        row[token] = score
    return Divergence(0, 1, 1, 9, mine, theirs, row, flip)


class Quiet:
    """Noise of 0.001 in the logits, and of this in the router."""

    def __init__(self, router: float = 1e-9, flips: bool = False):
        self.router, self.flips = router, flips

    def rms(self, stage, scores):
        return np.full(len(scores), 0.001 if stage == "verify.logits" else self.router)


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ({3: 16.125, 5: 15.875}, TWO_ULP),  # a ULP of 0.125 above 16, half of that below
        ({3: 15.875, 5: 16.125}, TWO_ULP),
        ({3: -16.125, 5: -15.875}, TWO_ULP),
        ({3: -15.875, 5: -16.125}, TWO_ULP),
        ({3: 15.875, 5: 15.625}, BUG),
        ({3: 16.3125, 5: 16.0}, BUG),
    ],
)
def test_two_ulp_are_those_of_the_larger_logit_whichever_side_chose_it(scores, verdict):
    assert classify_divergence(divergence(scores=scores), Decoded((1, 3), {}), Quiet()) == verdict


@pytest.mark.parametrize(("token", "verdict"), [(-1, BUG), (0, TIE), (63, TIE), (64, BUG), (70, BUG)])
def test_only_an_id_of_the_vocabulary_is_explained(token, verdict):
    assert classify_divergence(divergence(3, token), Decoded((1, 3), {}), Quiet()) == verdict


@pytest.mark.parametrize(
    ("row", "experts", "noise", "verdict"),
    [
        (1, [0, 2], 1e-9, ROUTER),  # tied with expert 1
        (0, [0, 2], 1e-9, BUG),
        (0, [0, 2], 0.2, ROUTER),  # 1 below, seven times the noise
        (0, [0, 2], 0.1, BUG),
        (1, [1, 0], 1e-9, ROUTER),  # the same two
    ],
)
def test_a_router_tie_explains_by_the_row_in_which_it_fell(row, experts, noise, verdict):
    router = np.array([[2, 1, 0, -4], [2, 1, 1, -4], [2, 1, 0, -4]], np.float32)
    rows = {EXPERTS[0].replace("experts", "router_logits"): router, EXPERTS[0]: np.tile([0, 1], (3, 1))}
    found = divergence(scores={3: 17.0}, flip=(EXPERTS[0], row, np.array(experts)))
    assert classify_divergence(found, Decoded((1, 3, 3, 3), rows), Quiet(noise)) == verdict


def context_of(device, prompts: int = 1, **case) -> SimpleNamespace:
    told = [SimpleNamespace(id=f"p{number}", ids=IDS) for number in range(prompts)]
    case = SimpleNamespace(**dict(prompts=told, max_new_tokens=6, schedule=None, drafts=None, k=2) | case)
    return SimpleNamespace(
        golden=SimpleNamespace(manifest=SimpleNamespace(case=case)),
        device=lambda precision=None: device,
        progress=lambda *of: None,
    )


TIES = {1: {4: 4.0}, 2: {6: 0.0}, 3: {6: 0.0}}
"""Token 4 ties with the first one; 6 is far below the others."""


@pytest.mark.parametrize(
    ("precision", "flips", "counted", "position"),
    [("bfloat16", False, {TIE: 1, BUG: 2}, 4), ("float32", False, {BUG: 3}, 3), ("float32", True, {TIE: 1, BUG: 2}, 4)],
)
def test_the_first_bug_is_named_and_float32_without_flips_explains_nothing(precision, flips, counted, position):
    device = Scripted(TEXT, [[7, 8], [3, 2]], wide={1: 4, 2: 6, 3: 6}, scores=TIES)
    found = lossless.equals_plain_decoding(context_of(device), Quiet(flips=flips), precision)
    assert found.verdict == "fail" and found.figures["divergences"] == counted
    assert found.place == Place("verify.tokens", None, 0, 1, position)
    assert found.name == f"speculation = plain decoding, {precision}"


def test_where_nothing_is_a_bug_the_first_row_that_parts_is_named():
    """Not led back, the first prompt loses what is behind its tie, and so does the second."""
    device = Scripted(TEXT, [[7, 8], [3, 2]], wide={2: 4}, scores={2: {4: 4.0}}, hides=("verify.tokens",))
    found = lossless.equals_plain_decoding(context_of(device, 2), Quiet(), "bfloat16")
    assert found.verdict == "inconclusive" and found.figures["lost"] == 8 and found.figures["divergences"] == {TIE: 2}
    assert found.place == Place("verify.tokens", None, 0, 1, 4)


def test_a_row_behind_a_router_tie_is_not_named_before_an_earlier_bug():
    device = Scripted(TEXT, [[7, 8], [3, 2]], wide={1: 6, 3: 6}, routes={(0, 3): [1, 2]})
    found = lossless.equals_plain_decoding(context_of(device), Quiet(), "bfloat16")
    assert found.figures["divergences"] == {BUG: 1, ROUTER: 1} and found.place.position == 3


@pytest.mark.parametrize(("schedule", "asked"), [(None, [()] * 2), ((1, 2), [(2,), (1,)])])
def test_a_round_is_asked_for_its_own_k_where_that_changes(schedule, asked):
    device, given = Scripted(TEXT, [[7, 8], [3, 2]]), []
    draft = device.draft
    device.draft = lambda tap, *k: given.append(k) or draft(tap)
    context = context_of(device, schedule=schedule, drafts=lambda round_: 3 - round_)
    assert lossless.equals_plain_decoding(context, Quiet(), "float32").verdict == "pass" and given == asked


def test_a_prompt_that_parts_by_a_tie_alone_passes_and_each_prompt_is_counted():
    device = Scripted(TEXT, [[7, 8], [3, 2]], wide={1: 4}, scores=TIES)
    found = lossless.equals_plain_decoding(context_of(device, 3), Quiet(), "bfloat16")
    assert found.verdict == "pass" and found.place is None
    line = "0 of 3 prompts the same, 18 tokens, 12 accepted drafts; 3 rows chose another: 3 tie, 0 bug"
    assert found.evidence == line
    assert found.figures == {
        "prompts": 3, "same": 0, "tokens": 18, "lost": 0, "accepted_drafts": 12, "rounds": 6, "divergences": {TIE: 3},
    }  # fmt: skip


PARTED = divergence()
FIRST = Place("verify.tokens", None, 0, 1, 9)
CLEAN = dict(tokens=6, rounds=2, drafts=3)


@pytest.mark.parametrize(
    ("runs", "verdicts", "verdict", "line"),
    [
        (
            [CLEAN, CLEAN | {"divergences": [PARTED]}],
            {TWO_ULP: 2, NOISE: 1, ROUTER: 1},
            "pass",
            "1 of 2 prompts the same, 12 tokens, 6 accepted drafts; 4 rows chose another: 0 tie, 2 within two ULP, "
            "1 noise, 1 behind a router tie, 0 bug",
        ),
        (
            [CLEAN, CLEAN | {"lost": 2}],
            {},
            "inconclusive",
            "1 of 2 prompts the same, 12 tokens, 6 accepted drafts; 0 rows chose another: 0 tie, 0 bug; "
            "2 tokens not reached",
        ),
        (
            [CLEAN | {"drafts": 0}],
            {},
            "inconclusive",
            "1 of 1 prompts the same, 6 tokens, 0 accepted drafts; 0 rows chose another: 0 tie, 0 bug; "
            "no draft was ever accepted: losslessness was not tried",
        ),
        (
            [CLEAN, CLEAN | {"wrong": "the second"}, CLEAN | {"wrong": "the third", "drafts": 1}],
            {TIE: 1},
            "fail",
            "3 of 3 prompts the same, 18 tokens, 7 accepted drafts; 1 rows chose another: 1 tie, 0 bug; the second",
        ),
        (
            [CLEAN | {"lost": 1, "drafts": 0}],
            {BUG: 1},
            "fail",
            "0 of 1 prompts the same, 6 tokens, 0 accepted drafts; 1 rows chose another: 0 tie, 1 bug; "
            "1 tokens not reached; no draft was ever accepted: losslessness was not tried",
        ),
    ],
)
def test_what_runs_come_to_is_said_with_its_numbers(runs, verdicts, verdict, line):
    found = lossless._check("float32", [AlignedRun(**run) for run in runs], Counter(verdicts), PARTED)
    assert (found.verdict, found.evidence) == (verdict, line)
    assert found.place == (None if verdict == "pass" else FIRST)


def test_the_accept_rule_is_tried_on_every_pattern():
    context = context_of(Scripted(TEXT, eos=(0,)), prompts=2)
    context.golden.manifest.case.prompts[1].ids = (1, 1)  # no rounds could be made of it
    found = lossless.accepts_by_rule(context)
    assert (found.verdict, found.figures) == ("pass", {"rounds": 5, "wrong": []})
    assert found.evidence == "5 made-up rounds, every pattern of accepted and rejected drafts"


def test_the_first_made_up_round_that_goes_wrong_is_quoted():
    device = Scripted(TEXT)
    device.commit = lambda drafts, tokens, tap: [int(token) for token in tokens]
    found = lossless.accepts_by_rule(context_of(device))
    assert found.verdict == "fail" and found.figures["rounds"] == 5 and len(found.figures["wrong"]) == 3
    first = "drafts [1, 3], chosen [1, 2, 3], 6 left: [1, 2, 3], not [1, 2]"
    assert found.evidence == f"3 of 5 rounds emit other tokens; {first}"


def test_a_prompt_of_one_token_leaves_the_rule_unchecked():
    context = context_of(Scripted(TEXT))
    context.golden.manifest.case.prompts[0].ids = (1, 1)
    found = lossless.accepts_by_rule(context)
    assert found.verdict == "inconclusive"
    assert found.evidence == "not checked: the prompt has no two tokens to make rounds of"


def test_every_made_up_cut_is_of_one_place_and_leaves_room_for_what_is_behind_it():
    ends = [(round_.tokens, round_.left) for round_ in made_up.cuts((1, 2, 3), 2, (0,))]
    by_budget, by_end = ends[:3], ends[3:]
    assert by_budget == [((1, 2, 3), 1), ((1, 2, 3), 2), ((1, 2, 3), 3)]
    assert by_end == [((0, 2, 3), 6), ((1, 0, 3), 6), ((1, 2, 0), 6)]
