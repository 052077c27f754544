"""Sequences over the lanes of a batch: who sits where, which verb comes next, and what stands before such a device."""

from __future__ import annotations

import numpy as np
import pytest

from parity.api import compare_dumps, run_device
from parity.batching import VerbCall, perform, perform_together
from parity.errors import DeviceFailed
from parity.guard import guard
from parity.isolation import ProcessLimits
from parity.partly_shown import shown_only
from parity.seam import Batched, ContinuingInLanes, Description, Poisonable


class Lanes:
    """Notes its calls; each verb returns what it was given."""

    def __init__(self, lanes=2):
        self.lanes, self.calls = lanes, []

    def describe(self):
        return Description("lanes", "float32", 1, 1, 2, 64, lanes=self.lanes)

    def prefill_batch(self, lanes, prompts, budgets, taps):
        self.calls.append(("prefill", tuple(lanes)))
        return [prompt[0] for prompt in prompts]

    def draft_batch(self, lanes, taps, ks=None):
        self.calls.append(("draft", tuple(lanes)))
        return [np.arange(k) for k in ks or [2] * len(lanes)]

    def verify_batch(self, lanes, drafts, taps):
        self.calls.append(("verify", tuple(lanes)))
        return list(drafts)

    def commit_batch(self, lanes, drafts, verified, taps):
        self.calls.append(("commit", tuple(lanes)))
        return list(verified)


def sequence(first, rounds):
    """Prefill, and so many drafts; what came back."""
    found = [(yield VerbCall("prefill", ([first], 8), print))]
    for _ in range(rounds):
        found.append(len((yield VerbCall("draft", (), print))))
    return found


def test_lanes_are_filled_again_as_they_become_free_and_wait_for_who_is_behind():
    device = Lanes()
    ended = list(
        perform_together(device, enumerate(sequence(first, rounds) for first, rounds in ((5, 1), (6, 2), (7, 1))))
    )
    assert ended == [(0, [5, 2]), (1, [6, 2, 2]), (2, [7, 2])]
    assert device.calls == [
        ("prefill", (0, 1)), ("draft", (0, 1)),  # the first one has ended, the third joins
        ("prefill", (0,)), ("draft", (1, 0)),
    ]  # fmt: skip


def test_lanes_are_taken_in_the_order_that_is_asked_for():
    device = Lanes(3)
    list(perform_together(device, enumerate([sequence(5, 1)]), [2, 0]))
    assert device.calls == [("prefill", (2,)), ("draft", (2,))]


def test_another_number_of_results_than_lanes_is_an_error():
    device = Lanes()
    device.draft_batch = lambda lanes, taps, ks=None: [np.arange(2)]
    with pytest.raises(ValueError, match="zip"):
        list(perform_together(device, enumerate([sequence(5, 1), sequence(6, 1)])))
    with pytest.raises(DeviceFailed, match="draft_batch: it returned 1 results for 2 lanes: a list is due"):
        guard(device, "lanes").draft_batch([0, 1], [print, print])


@pytest.mark.parametrize("wrap", [lambda device: guard(device, "lanes"), lambda device: shown_only(device, "logits")])
def test_single_verbs_are_those_of_the_last_lane(wrap):
    device = Lanes(3)
    wrapped = wrap(device)
    assert isinstance(wrapped, Batched) and not isinstance(wrapped, Poisonable)
    assert perform(wrapped, sequence(5, 2)) == [5, 2, 2]
    assert (
        wrapped.verify(np.arange(1), print).tolist()
        == wrapped.commit(np.arange(9), np.arange(1), print).tolist()
        == [0]
    )
    assert {lanes for _, lanes in device.calls} == {(2,)}


class Continues(Lanes):
    def prefill_from_batch(self, lanes, cached, prompts, budgets, taps):
        self.calls.append(("prefill_from", tuple(lanes), tuple(cached)))
        return [prompt[-1] for prompt in prompts]

    def save_batch(self, lanes, names):
        self.calls.append(("save", tuple(lanes), tuple(names)))

    def restore_batch(self, lanes, names):
        self.calls.append(("restore", tuple(lanes), tuple(names)))


@pytest.mark.parametrize("wrap", [lambda device: guard(device, "lanes"), lambda device: shown_only(device, "logits")])
def test_what_lanes_continue_goes_through_what_stands_before_them(wrap):
    device = Continues(3)
    wrapped = wrap(device)
    assert isinstance(wrapped, ContinuingInLanes) and not isinstance(wrap(Lanes(3)), ContinuingInLanes)
    assert wrapped.prefill_from_batch([2, 0], [1, 4], [[5, 6], [7, 8]], [8, 9], [print, print]) == [6, 8]
    wrapped.save_batch([1], ["a"])
    wrapped.restore_batch([1], ["a"])
    assert device.calls == [("prefill_from", (2, 0), (1, 4)), ("save", (1,), ("a",)), ("restore", (1,), ("a",))]


def test_a_run_over_lanes_has_its_tensors_by_prompt_in_any_process(shallow_golden, tmp_path):
    """Taps of several lanes go through one socket."""
    case = shallow_golden
    runs = [
        run_device(case, "numpy,lanes=2", "chained", out=tmp_path / name, limits=limits)
        for name, limits in (("here", None), ("there", ProcessLimits()))
    ]
    assert {compare_dumps(case, run).verdict for run in runs} == {"pass"}
    here, there = runs
    for number in range(len(case.manifest.case.prompts)):
        for stage in ("target.layers.1.out", "drafter.draft_tokens", "kv.drafter.0.k"):
            mine, theirs = (run.contents("bfloat16", number, 1, stage) for run in (here, there))
            assert mine.tobytes() == theirs.tobytes()
    assert "of several lanes" in here.manifest.producer.notes["batch"]
    assert here.manifest.producer.name == "numpy, 2 lanes"
