"""A device that is asked for the same round again, by hand: what it is given, what differs first, and where."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.report import Place
from parity.gates.rollback.repeat import PLAYS, _play, repeat_round
from parity.stages import declared

NAMES = declared(2, 1)
OUT, LOGITS, VERIFY, EXPERTS = "target.layers.0.out", "target.logits", "verify.logits", "target.layers.0.experts"


class Device:
    """Hands over rows of ones; `off` adds to a stage of a verb in one play: (verb, stage, row, play, by)."""

    def __init__(self, *off, first: int = 5):
        self.off, self.first, self.number, self.calls = off, first, -1, []

    def describe(self):
        return SimpleNamespace(k=3, eos=(9,), family="p-eagle", name="toy")

    def _hand(self, tap, verb: str, *stages: str) -> dict:
        back = {}
        for stage in stages:
            rows = np.ones((2, 4), np.float32)
            if stage == EXPERTS:
                rows = np.zeros((2, 2), np.int64) + self.number
            for where, name, row, play, by in self.off:
                if (where, name, play) == (verb, stage, self.number):
                    rows[row] += by
            back[stage] = tap(stage, rows)
        return back

    def prefill(self, ids, budget, tap):
        self.number += 1
        back = self._hand(tap, "prefill", OUT, LOGITS, EXPERTS)
        self.calls.append(("prefill", tuple(ids), budget, back[EXPERTS].tolist()[0][0]))
        return self.first

    def draft(self, tap):
        self._hand(tap, "draft", "drafter.logits")
        return np.full(3, 10 + self.number)

    def verify(self, drafts, tap):
        self._hand(tap, "verify", OUT, VERIFY)
        self.calls.append(("verify", drafts.tolist()))
        return np.full(4, 20 + self.number)

    def commit(self, drafts, tokens, tap):
        self._hand(tap, "commit", "kv.target.0.k")
        self.calls.append(("commit", drafts.tolist(), tokens.tolist()))


BASELINE = SimpleNamespace(ids=(1, 2, 3), prompt=4)


def asked(*off, bound: float = 1.0, first: int = 5):
    apart = lambda stage, before, now: np.abs(before[stage] - now[stage]).max(axis=1) / bound  # noqa: E731
    within = SimpleNamespace(names=NAMES, apart=apart)
    device = Device(*off, first=first)
    return repeat_round(device, BASELINE, within), device


def test_every_play_continues_with_the_drafts_tokens_and_choices_of_the_first():
    """The experts of a play are its number; those of the first are handed back."""
    found, device = asked()
    assert [call[0] for call in device.calls] == ["prefill", "verify", "commit"] * PLAYS
    assert {call[1:3] for call in device.calls if call[0] == "prefill"} == {((1, 2, 3), 2 * 3 + 3)}
    assert [call[3] for call in device.calls if call[0] == "prefill"] == [0] * PLAYS
    assert {str(call[1:]) for call in device.calls if call[0] == "verify"} == {"([10, 10, 10],)"}
    assert {str(call[1:]) for call in device.calls if call[0] == "commit"} == {"([10, 10, 10], [20, 20, 20, 20])"}
    assert (found.plays, found.tensors, found.rounds) == (PLAYS - 2, 7 * (PLAYS - 2), 1)


def test_a_prefill_that_ends_the_sequence_is_all_that_is_repeated():
    found, device = asked(first=9)
    assert [call[0] for call in device.calls] == ["prefill"] * PLAYS and found.rounds == 0
    assert found.tensors == 3 * (PLAYS - 2)


def differing(*off, **more):
    """Experts differ in every play beside what is asked for: they are exact here."""
    return asked(*off, **more)[0]


def test_the_first_play_is_not_compared_and_the_second_is_what_others_are_compared_with():
    quiet = differing()
    assert differing(("verify", OUT, 0, 0, 3.0)) == quiet
    assert differing(("verify", OUT, 0, 1, 3.0)).differing == quiet.differing + PLAYS - 2
    assert differing(("verify", OUT, 0, 2, 3.0)).differing == quiet.differing + 1


@pytest.mark.parametrize(
    ("off", "worst", "place"),
    [
        (("prefill", OUT, 1, 2, 0.75), (0.75, OUT), None),
        (("prefill", OUT, 1, 2, 1.0), (1.0, OUT), None),
        (("prefill", OUT, 1, 2, 1.25), (1.25, OUT), Place(OUT, 0, 4, 0, 1)),
        (("verify", VERIFY, 1, 2, 2.0), (2.0, VERIFY), Place(VERIFY, None, 4, 1, 4)),
        (("commit", "kv.target.0.k", 1, 2, 2.0), (2.0, "kv.target.0.k"), Place("kv.target.0.k", 0, 4, 1, 1)),
    ],
)
def test_a_row_beyond_its_bound_is_placed(off, worst, place, monkeypatch):
    monkeypatch.setattr(Device, "_hand", without_experts(Device._hand))
    found = differing(off)
    assert (found.differing, found.first, found.worst) == (1, off[1], worst)
    assert found.place == place and not found.exact


def without_experts(hand):
    """Experts that are the same in every play."""

    def handed(self, tap, verb, *stages):
        back = hand(self, tap, verb, *(stage for stage in stages if stage != EXPERTS))
        return back | {EXPERTS: np.zeros((1, 1), np.int64)}

    return handed


def test_the_first_stage_is_by_the_order_of_the_data_and_the_worst_by_its_rows(monkeypatch):
    monkeypatch.setattr(Device, "_hand", without_experts(Device._hand))
    found = differing(("verify", OUT, 0, 2, 9.0), ("prefill", LOGITS, 0, 2, 2.0), ("verify", VERIFY, 0, 2, 3.0))
    assert (found.differing, found.first, found.worst) == (3, LOGITS, (9.0, OUT))
    assert found.place == Place(LOGITS, None, 4, 0, 0)
    exact = asked()[0]
    assert exact.exact and (exact.first, exact.worst, exact.place) == ("", (0.0, ""), None)


def test_without_a_script_a_device_continues_with_its_own():
    play = _play(Device(), BASELINE, NAMES, None)
    assert play.drafts.tolist() == [10] * 3 and play.tokens.tolist() == [20] * 4
    assert [*play.seen] == ["prefill", "draft", "verify", "commit"]
