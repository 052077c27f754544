"""What free runs emit, by hand: where two part, counts that contradict a run's own drafts, and means."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import generation
from parity.compare.generation import (
    Generations,
    _contradictions,
    _counts,
    _differences,
    _miscounted,
    _Parting,
    _parting,
    acceptance,
)
from parity.golden.case import Generation


def told(emitted, lengths, accepted=None, finish: str = "length") -> Generation:
    counts = tuple(length - 1 for length in lengths) if accepted is None else accepted
    return Generation(emitted=tuple(emitted), acceptance_length=lengths, accepted_drafts=counts, finish=finish)


TRUE = told((5, 6, 7, 8, 9, 10, 11), (2, 1, 3))


def pair(own: Generation, true: Generation = TRUE) -> Generations:
    return Generations(4, "p", true, own)


@pytest.mark.parametrize(
    ("emitted", "common", "place"),
    [
        ((5, 6, 7, 8, 9, 10, 11), 7, None),
        ((5, 6, 7), 3, None),
        ((5, 6, 7, 8, 9, 10, 11, 12), 7, None),
        ((4, 6), 0, (0, -1, 4, "target.tokens")),
        ((5, 9), 1, (1, 0, 9, "verify.tokens")),
        ((5, 6, 9, 8), 2, (1, 1, 9, "verify.tokens")),
        ((5, 6, 7, 9), 3, (2, 0, 9, "verify.tokens")),
        ((5, 6, 7, 8, 9, 10, 1), 6, (3, 2, 1, "verify.tokens")),
    ],
)
def test_the_first_other_token_is_placed_in_its_round_and_row(emitted, common, place):
    both = pair(told(emitted, ()))
    assert both.common == common
    found = _Parting.of(both)
    assert (None if found is None else (found.round, found.row, found.token, found.tokens)) == place


@pytest.mark.parametrize(
    ("emitted", "lengths", "round_"),
    [
        ((4, 6, 7), (2,), 0), ((5, 6, 9), (2,), 1), ((5, 6, 7), (1, 1), 1), ((5, 6, 7, 9), (2, 1), 2),
        ((5, 6, 7, 8, 9), (2, 2), 2), ((5, 6, 7), (2,), 1), ((5, 6, 7, 8, 9, 10, 11), (2, 1, 3), 3),
        ((5, 6, 7, 8, 9, 10, 11, 12), (2, 1, 3, 1), 3),
    ],
)  # fmt: skip
def test_the_first_round_of_other_tokens_or_another_number_is_told(emitted, lengths, round_):
    assert _parting(TRUE, told(emitted, lengths)) == round_


def said(found) -> list[tuple]:
    return [(one.stage, one.round, one.message) for one in found]


def test_rounds_emit_their_accepted_drafts_and_one_the_last_may_be_cut():
    assert said(_contradictions(4, "p", told(range(9), (3, 2, 3), (2, 1, 1)))) == []
    emits = "prompt p: round {} of the free run emits {} tokens with {} drafts accepted"
    assert said(_contradictions(4, "p", told(range(9), (3, 2, 1), (1, 2, 0)))) == [
        ("accept.length", 1, emits.format(1, 3, 1)), ("accept.length", 2, emits.format(2, 2, 2)),
    ]  # fmt: skip


OTHER = "prompt p: the free run emits other tokens or counts"


@pytest.mark.parametrize(
    ("precision", "own", "stages", "due"),
    [
        ("float32", TRUE, None, None),
        ("float32", told((5, 6, 9), (2,)), (), ("accept.emitted", 1, OTHER)),
        ("float32", told(TRUE.emitted, (1, 2, 3)), ("accept.length",), ("accept.emitted", 1, OTHER)),
        ("float32", told(TRUE.emitted, (2, 1, 3), finish="eos"), ("accept.length",), ("accept.emitted", 3, OTHER)),
        ("bfloat16", told((5, 6, 9), (2,)), None, None),
        ("bfloat16", told((5, 6, 7), (2,), finish="eos"), (),
         ("accept.emitted", 1, "prompt p: the free run ends after 3 tokens, where the reference continues")),
        ("bfloat16", told((5, 6, 7), (2,)), None, None),
        ("bfloat16", told((5, 6, 9), (2,), finish="eos"), None, None),
        ("bfloat16", told(TRUE.emitted, (2, 1, 3), finish="eos"), None, None),
    ],
)  # fmt: skip
def test_other_tokens_count_in_float32_and_an_early_end_in_any_precision(precision, own, stages, due):
    found = [*_differences(precision, pair(own))]
    if due is None:
        assert found == []
        return
    ((seen, finding),) = found
    assert seen == stages and (finding.stage, finding.round, finding.message) == due and finding.prompt == 4


def miscounted(own: Generation, drafts: dict[int, list[int]], monkeypatch, parted=True, sides: int = 1, true=TRUE):
    asked = []
    monkeypatch.setattr(generation, "_parted", lambda golden, *of: asked.append(of) or parted)
    run = SimpleNamespace(
        sides=(None,) * sides,
        manifest=SimpleNamespace(case=SimpleNamespace(precision="bfloat16")),
        contents=lambda variant, prompt, round_, stage: (
            np.array(drafts[round_])
            if (variant, prompt, stage) == ("bfloat16", 4, "drafter.draft_tokens") and round_ in drafts
            else None
        ),
    )
    return said(_miscounted(None, run, pair(own, true))), asked


MORE = (
    "prompt p: round {} of the free run accepts {} drafts, the reference {} of the same text, and the run's own draft "
)


def test_a_round_that_accepts_other_drafts_than_the_run_makes_is_told(monkeypatch):
    """In round 1 the reference accepts one of two drafts, the run none, though its own first draft is the token 6."""
    fewer = told((5, 6, 7, 8, 9), (1, 2, 1))
    found, asked = miscounted(fewer, {1: [6, 1]}, monkeypatch)
    words = MORE.format(1, 0, 1) + "1 of that round is 6, the target's token there 6"
    assert found == [("accept.length", 1, words)] and asked == [(4, 1, 0, 6, 6)]
    assert miscounted(fewer, {1: [9, 1]}, monkeypatch) == ([], [])  # its own draft is no token of the target
    assert miscounted(fewer, {1: [6, 1]}, monkeypatch, parted=False)[0] == []
    assert miscounted(fewer, {}, monkeypatch)[0] == miscounted(fewer, {1: []}, monkeypatch)[0] == []
    assert miscounted(fewer, {1: [6, 1]}, monkeypatch, sides=2)[0] == []


def test_a_round_that_accepts_more_is_told_by_the_draft_that_is_no_token(monkeypatch):
    more = told((5, 6, 7, 8, 9, 10), (3, 1, 1))
    found, asked = miscounted(more, {1: [6, 1]}, monkeypatch)
    assert found == [("accept.length", 1, MORE.format(1, 2, 1) + "2 of that round is 1, the target's token there 7")]
    assert asked == [(4, 1, 1, 1, 7)] and miscounted(more, {1: [6, 7]}, monkeypatch)[0] == []


def test_a_later_round_is_asked_behind_alike_ones(monkeypatch):
    later = told((5, 6, 7, 8, 9, 10), (2, 2, 1))
    found, asked = miscounted(later, {1: [6, 1], 2: [1]}, monkeypatch)
    assert found == [("accept.length", 2, MORE.format(2, 1, 0) + "1 of that round is 1, the target's token there 8")]
    assert asked == [(4, 2, 0, 1, 8)]
    assert miscounted(told((5, 6, 7, 8, 9), (2, 2)), {2: [8]}, monkeypatch)[0] == []
    assert miscounted(told((5, 6, 7, 8, 9, 10), (2, 1, 2)), {3: [1]}, monkeypatch)[0] == []
    other = told((5, 6, 7, 1, 9, 10), (2, 2, 1))  # another text, from that round's first token on
    assert miscounted(other, {2: [9]}, monkeypatch)[0] == []
    assert miscounted(told((5, 6, 7, 8, 1, 10), (2, 2, 1)), {2: [1]}, monkeypatch)[0] != []


def test_a_round_that_the_budget_cuts_may_emit_as_many_and_accept_fewer(monkeypatch):
    """Round 3 emits two tokens either way: two accepted drafts, or one and the target's own token."""
    text, lengths = (5, 6, 7, 8, 9, 10), (2, 1, 2)
    true, own = told(text, lengths, (1, 0, 2)), told(text, lengths, (1, 0, 1))
    found, asked = miscounted(own, {3: [9, 10, 11]}, monkeypatch, true=true)
    assert found == [("accept.length", 3, MORE.format(3, 1, 2) + "2 of that round is 10, the target's token there 10")]
    assert asked == [(4, 3, 1, 10, 10)] and miscounted(own, {3: [9, 1, 11]}, monkeypatch, true=true)[0] == []


def test_means_are_over_all_rounds_of_all_prompts():
    none = _counts([])
    assert (none.acceptance_length, none.accepted_drafts, none.rounds) == (0, 0, 0)
    both = _counts([TRUE, told((1, 2, 3, 4, 5), (4,), (2,))])
    assert (both.acceptance_length, both.accepted_drafts, both.rounds) == (2.5, 5 / 4, 4)


def test_prompts_that_emit_the_same_tokens_are_counted():
    def side(*generations) -> SimpleNamespace:
        prompts = [SimpleNamespace(generation=one) for one in generations]
        return SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts)))

    counted = told(TRUE.emitted, (1, 2, 3))
    found = acceptance(side(TRUE, TRUE, None, TRUE), side(counted, told((5,), ()), TRUE, None))
    assert (found.same_prompts, found.prompts, found.reference.rounds, found.device.rounds) == (1, 4, 9, 6)
    silent = acceptance(side(TRUE), side(None))
    assert silent.device is silent.same_prompts is None and silent.prompts == 1
