"""What a round of a history hands over, by hand: drafts, what verify says of them, and what comes out."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import DeviceEnded
from parity.gates.rollback.history import RoundPlan, TapError
from parity.gates.rollback.invariants import InvariantBroken
from parity.gates.rollback.play import HistoryPlayer
from parity.stages import declared

IDS = (1, 2)
TEXT = (5, 7, 8, 9, 3, 2, 6, 4)


def player(text=TEXT, emitted: int = 1, budget: int = 99, eos=(), **stages: int) -> HistoryPlayer:
    """A player in mid-sequence; of each verb so many stages were counted."""
    made = HistoryPlayer.__new__(HistoryPlayer)
    baseline = SimpleNamespace(ids=IDS, text=[*IDS, *text])
    made.sequence = SimpleNamespace(baseline=baseline, emitted=list(text[:emitted]), budget=budget)
    made.eos, made.stages, made.k = eos, stages, 3
    return made


def planned(plan: RoundPlan, room: int = 3, **more) -> tuple[list[int], list[int], list[int]]:
    drafts, tokens, emitted = player(**more)._plan(plan, room)
    assert (drafts.dtype, tokens.dtype) == ("int64", "int64")
    return drafts.tolist(), tokens.tolist(), emitted


@pytest.mark.parametrize(
    ("plan", "drafts", "tokens", "emitted"),
    [
        (RoundPlan(0, 3), [1, 8, 9], [7, 8, 9, 7], [7]),
        (RoundPlan(1, 3), [7, 1, 9], [7, 8, 9, 7], [7, 8]),
        (RoundPlan(2, 3), [7, 8, 1], [7, 8, 9, 7], [7, 8, 9]),
        (RoundPlan(3, 3), [7, 8, 9], [7, 8, 9, 3], [7, 8, 9, 3]),
        (RoundPlan(3, 2), [7, 8], [7, 8, 9], [7, 8, 9]),
        (RoundPlan(1, 1), [7], [7, 8], [7, 8]),
        (RoundPlan(0, 0), [], [7], [7]),
        (RoundPlan(2, 3, plain=True), [], [7], [7]),
    ],
)
def test_the_first_so_many_drafts_are_the_texts_and_the_next_one_is_not(plan, drafts, tokens, emitted):
    assert planned(plan) == (drafts, tokens, emitted)


def test_no_more_is_offered_than_there_is_room_for():
    assert planned(RoundPlan(3, 3), 2) == ([7, 8], [7, 8, 9], [7, 8, 9]) and planned(RoundPlan(1, 3), 0)[0] == []


def test_a_wrong_draft_is_the_first_other_token_of_the_text_or_0_or_1():
    assert planned(RoundPlan(0, 1), text=(1, 1, 5, 6))[0] == [2]
    alike = [SimpleNamespace(ids=(token,), text=[token] * 9) for token in (0, 1, 7)]
    for baseline, other in zip(alike, (1, 0, 0), strict=True):
        made = player()
        made.sequence = SimpleNamespace(baseline=baseline, emitted=[baseline.ids[0]], budget=99)
        drafts, tokens, emitted = made._plan(RoundPlan(1, 3), 3)
        true = baseline.ids[0]
        assert (drafts.tolist(), tokens.tolist()) == ([true, other, true], [true] * 4) and emitted == [true] * 2


def test_an_end_token_is_accepted_by_verify_and_comes_out_behind_the_accepted_drafts():
    assert planned(RoundPlan(1, 3, end=True), eos=(77, 78)) == ([7, 77, 9], [7, 77, 9, 7], [7, 77])
    assert planned(RoundPlan(3, 3, end=True), eos=(77,)) == planned(RoundPlan(3, 3))
    assert planned(RoundPlan(1, 3, end=True)) == planned(RoundPlan(1, 3))


@pytest.mark.parametrize(("budget", "emitted"), [(5, [7, 8, 9, 3]), (4, [7, 8, 9]), (2, [7]), (1, [])])
def test_a_budget_cuts_what_comes_out_and_nothing_else(budget, emitted):
    assert planned(RoundPlan(3, 3), budget=budget) == ([7, 8, 9], [7, 8, 9, 3], emitted)


def test_at_the_end_of_the_text_as_many_drafts_are_right_as_leave_one_token():
    """Behind it the drafts are the text from its beginning on, and so are verify's tokens."""
    assert planned(RoundPlan(3, 3), emitted=6) == ([6, 1, 1], [6, 4, 1, 6], [6, 4])
    assert planned(RoundPlan(3, 3), emitted=7) == ([1, 1, 2], [4, 1, 2, 4], [4])
    assert planned(RoundPlan(3, 3), emitted=4) == ([3, 2, 6], [3, 2, 6, 4], [3, 2, 6, 4])


@pytest.mark.parametrize(
    ("where", "count", "at"),
    [(0, 6, 0), (500, 6, 3), (999, 6, 5), (166, 6, 0), (167, 6, 1), (999, 1, 0), (500, 0, None)],
)
def test_an_error_is_raised_at_a_thousandths_stage(where, count, at):
    made = player(verify=count)
    assert made._at("verify", TapError("verify", where)) == at
    assert made._at("draft", TapError("draft", where)) == 0  # of a verb that was never counted: at its first


def test_a_rehearsal_ends_at_the_last_stage_that_was_counted():
    made = player(verify=6, draft=0)
    assert (made._last("verify"), made._last("draft"), made._last("commit")) == (5, None, None)
    assert player(commit=1)._last("commit") == 0


def test_a_rounds_k_is_the_devices_where_none_is_asked():
    made = player()
    assert [made._asked(RoundPlan(0, 3, asked=asked)) for asked in (None, 0, 2)] == [3, 0, 2]


@pytest.mark.parametrize(
    ("emitted", "budget", "eos", "finished"),
    [(2, 3, (), False), (3, 3, (), True), (4, 3, (), True), (2, 9, (7,), True), (2, 9, (5,), False), (2, 9, (), False)],
)
def test_a_sequence_is_finished_at_its_budget_or_behind_an_end_token(emitted, budget, eos, finished):
    assert player(emitted=emitted, budget=budget, eos=eos)._finished() is finished


EXPERTS, OUT, TOKENS = "target.layers.0.experts", "target.layers.0.out", "verify.tokens"


def ids(*rows: int) -> np.ndarray:
    return np.array(rows).reshape(-1, 1)


@pytest.mark.parametrize("forces", [False, True])
def test_behind_an_error_a_verb_continues_with_the_choices_of_the_first_time_behind_the_true_rows(forces):
    made = player()
    made.names, made.same = declared(1, 1), SimpleNamespace(forces=forces)
    made.failed = {"verify": {EXPERTS: ids(5, 6, 7), TOKENS: np.array([1, 2]), OUT: np.ones((3, 4))}}
    found = made._routed("verify", {EXPERTS: ids(3, 4), "target.layers.0.pages": ids(9)})
    due = {EXPERTS: [[3], [4], [7]], TOKENS: [1, 2]} if forces else {EXPERTS: [[3], [4]]}
    assert {name: rows.tolist() for name, rows in found.items()} == due | {"target.layers.0.pages": [[9]]}
    assert made._routed("draft", {EXPERTS: ids(3)})[EXPERTS].tolist() == [[3]]


class Twice:
    """A device that tells what each call was routed to, and what came behind its tap."""

    def __init__(self, error: Exception | None = None):
        self.error, self.seen = error, []

    def verify(self, drafts, tap, *behind):
        self.seen.append(([*map(int, drafts)], {name: rows.tolist() for name, rows in tap.routes.items()}, behind))
        if self.error and len(self.seen) == 1:
            raise self.error
        tap(OUT, np.zeros((1, 4)))
        tap(EXPERTS, ids(1))
        return "done"


def broken(device: Twice) -> HistoryPlayer:
    made = player(verify=2)
    made.device, made.names, made.failed = device, declared(1, 1), {}
    made.same = SimpleNamespace(forces=True, changed=lambda stage, first, now: None)
    made.coverage = SimpleNamespace(errors={"verify": 0})
    made.place = lambda stage, position=None: None
    return made


@pytest.mark.parametrize("routes", [None, {EXPERTS: ids(3)}])
def test_a_verb_that_fails_on_the_way_is_routed_as_the_one_behind_it(routes):
    device = Twice()
    made = broken(device)
    result, tap = made._verb("verify", TapError("verify", 500), [7, 8], routes=routes, behind=(2,))
    given = {} if routes is None else {EXPERTS: [[3]]}
    again = {EXPERTS: [[3]] if routes else [[1]]}  # with the choices of the first time
    assert device.seen == [([7, 8], given, (2,)), ([7, 8], again, (2,))]
    assert result == "done" and [*tap.tensors] == [OUT, EXPERTS] and made.coverage.errors == {"verify": 1}
    device.seen.clear()
    made._verb("verify", TapError("draft", 500), [7, 8], routes=routes)
    assert len(device.seen) == 1 and made.coverage.errors == {"verify": 1}


@pytest.mark.parametrize("error", [None, TapError("verify", 500)])
def test_a_verb_that_raises_by_itself_breaks_an_invariant_and_an_end_is_an_end(error):
    with pytest.raises(InvariantBroken, match="verify raised ZeroDivisionError: no"):
        broken(Twice(ZeroDivisionError("no")))._verb("verify", error, [7])
    with pytest.raises(DeviceEnded):
        broken(Twice(DeviceEnded("toy", "verify", "gone")))._verb("verify", error, [7])
