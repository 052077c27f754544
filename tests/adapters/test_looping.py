"""A host loop in one piece: its rounds as it announces them, and announcements that are none."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import UsageError
from parity.looping import drive_loop
from parity.rounds import generate
from parity.stages import declared
from parity.trace import ForcingTrace


class Scripted:
    """Announces these rounds, and hands over the logits of each before."""

    def __init__(self, *rounds, returns=None):
        self.rounds, self.returns = rounds, returns

    def describe(self):
        return SimpleNamespace(name="scripted", eos=(9,))

    def speculate(self, prompt_ids, max_new_tokens, tap, on_round):
        emitted = []
        for number, (drafts, fresh, *tokens) in enumerate(self.rounds):
            tap("verify.logits" if number else "target.logits", np.zeros((len(drafts) + 1, 4), np.float32))
            emitted += fresh
            on_round(drafts, fresh, *tokens)
        tap("drafter.logits", np.zeros((2, 4), np.float32))  # it drafts once more before it ends
        return emitted if self.returns is None else self.returns


SAME = (((), [1]), ([2, 3], [2, 4]), ([5, 5], [9]))


def trace(*rounds):
    golden = {(0, "target.tokens"): np.array([7, *rounds[0][1]])}
    for number, (drafts, emitted) in enumerate(rounds[1:], 1):
        golden[number, "drafter.draft_tokens"] = np.array(drafts)
        golden[number, "accept.emitted"] = np.array(emitted)
    return ForcingTrace(declared(2, 2), lambda round_, stage: golden.get((round_, stage)), frozenset())


def test_rounds_and_what_they_chose_are_recorded_and_what_comes_behind_them_is_not():
    seen = trace(*SAME)
    drive_loop(Scripted(*SAME), [7, 7], 9, seen)
    assert seen.parted is None
    chosen = {place: value.tolist() for place, value in seen.tensors.items() if "logits" not in place[1]}
    assert chosen == {
        (0, "target.tokens"): [1],
        (1, "drafter.draft_tokens"): [2, 3],
        (1, "accept.length"): [2],
        (1, "accept.emitted"): [2, 4],
        (2, "drafter.draft_tokens"): [5, 5],
        (2, "accept.length"): [1],
        (2, "accept.emitted"): [9],
    }
    assert {place for place in seen.tensors if "logits" in place[1]} == {
        (0, "target.logits"), (1, "verify.logits"), (2, "verify.logits")
    }  # fmt: skip


def test_behind_a_draft_of_another_token_nothing_of_that_round_or_a_later_one_is_kept():
    seen = trace(*SAME)
    drive_loop(Scripted(SAME[0], ([2, 8], [2, 4]), SAME[2]), [7, 7], 9, seen)
    assert seen.parted == (1, "drafter.draft_tokens")
    assert {place for place in seen.tensors if place[0]} == {(1, "drafter.draft_tokens")}


def test_behind_another_emitted_token_the_caches_are_not_kept():
    seen = trace(*SAME)
    drive_loop(Scripted(SAME[0], ([2, 3], [2, 6]), SAME[2]), [7, 7], 9, seen)
    assert seen.parted == (1, "accept.emitted")
    assert {place[1] for place in seen.tensors if place[0]} == {
        "drafter.draft_tokens", "verify.logits", "accept.length", "accept.emitted"
    }  # fmt: skip


def test_another_number_of_tokens_parts_at_the_number():
    seen = trace(*SAME)
    seen.golden = _and(seen.golden, {(1, "accept.length"): np.array([2])})
    drive_loop(Scripted(SAME[0], ([2, 3], [2]), SAME[2]), [7, 7], 9, seen)
    assert seen.parted == (1, "accept.length") and (1, "accept.emitted") not in seen.tensors


def test_where_the_target_chose_another_token_itself_nothing_behind_its_choice_is_kept():
    seen = trace(*SAME)
    seen.golden = _and(seen.golden, {(1, "verify.tokens"): np.array([2, 4, 4])})
    drive_loop(Scripted(SAME[0], ([2, 3], [2, 6], [2, 6, 4]), SAME[2]), [7, 7], 9, seen)
    assert seen.parted == (1, "verify.tokens")
    assert {place[1] for place in seen.tensors if place[0]} == {
        "drafter.draft_tokens", "verify.logits", "verify.tokens"
    }  # fmt: skip


def _and(golden, more):
    return lambda round_, stage: more.get((round_, stage), golden(round_, stage))


def test_a_free_run_counts_what_the_rounds_announce():
    free = generate(Scripted(*SAME), [7, 7], 9)
    assert (free.emitted, free.acceptance_length, free.accepted_drafts, free.finish) == (
        (1, 2, 4, 9),
        (2, 1),
        (1, 0),
        "eos",
    )


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        (Scripted(*SAME, returns=[1, 2, 4]), "emitted 3 tokens, its rounds 4"),
        (Scripted(*SAME, returns=[1, 2, 4, 8]), "not the same"),
        (Scripted(([2], [1])), "the first one is the prefill"),
        (Scripted(((), [1, 2])), "the first one is the prefill"),
        (Scripted(*SAME, ([2], [])), "emits one at least"),
        (Scripted(), "emitted 0 tokens"),
    ],
)
def test_announcements_that_are_no_sequence_are_refused(device, sentence):
    with pytest.raises(UsageError, match=sentence):
        drive_loop(device, [7, 7], 9, trace(*SAME))
