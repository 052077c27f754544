"""Histories by hand: which are played, how one is told, and which disturbance is blamed."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest

from parity.compare.report import Place
from parity.gates.rollback.history import (
    NAN,
    SENTINEL,
    HistoryLimits,
    RoundPlan,
    SequencePlan,
    TapError,
    calmer,
    histories,
    render,
)
from parity.gates.rollback.invariants import Coverage, InvariantBroken
from parity.gates.rollback.sameness import BitExact

explore = import_module("parity.gates.rollback.explore")  # by module: the package's own `explore` is the function
PLACE = Place("verify.tokens", None, 0, 1, 9)


class Player:
    """Plays by a rule of what breaks: `broken(history)` is an aspect, or None."""

    def __init__(self, broken=lambda history: None, varies: bool = False, transactional: bool = True, poisons=True):
        self.broken, self.varies, self.k, self.history = broken, varies, 3, []
        self.baselines = [SimpleNamespace(ids=(0,) * length, asked=9) for length in (2, 9, 26)]
        self.coverage, self.same = Coverage(), BitExact()
        self.device = SimpleNamespace(describe=lambda: SimpleNamespace(transactional=transactional))
        if poisons:
            self.device.poison = lambda value: None

    def play(self, history) -> None:
        self.history.append(history)
        if aspect := self.broken(history):
            raise InvariantBroken(aspect, f"broken {aspect}", PLACE)

    def bound(self, stage):
        return 0.5


def rounds_of(history) -> list[RoundPlan]:
    return [round_ for sequence in history for round_ in sequence.rounds]


CALM = (SequencePlan(0, 6, (RoundPlan(1, 3),)),)
POISONED = (SequencePlan(0, 6, (RoundPlan(1, 3, rehearsed=True, poison=NAN),)),)
RAISING = (SequencePlan(1, 6, (RoundPlan(1, 3, rehearsed=True, poison=1.0, error=TapError("draft", 500)),)),)


def if_any(what: str):
    """Broken as `again` by this disturbance."""
    return lambda history: "again" if any(getattr(round_, what) for round_ in rounds_of(history)) else None


@pytest.mark.parametrize(
    ("history", "broken", "aspect", "blamed"),
    [
        (CALM, lambda history: None, None, None),
        (CALM, lambda history: "rows", "rows", CALM),
        (RAISING, lambda history: "state", "state", calmer(RAISING)),
        (RAISING, if_any("rehearsed"), "errors", calmer(RAISING, "rehearsed")),
        (RAISING, if_any("poison"), "poison", calmer(RAISING, "rehearsed", "poison")),
        (RAISING, if_any("error"), "errors", RAISING),
        (POISONED, if_any("poison"), "poison", POISONED),
    ],
)
def test_the_least_disturbance_that_breaks_a_history_is_blamed(history, broken, aspect, blamed):
    failure = explore.judge_history(Player(broken), history)
    if aspect is None:
        assert failure is None
        return
    assert (failure.aspect, failure.history, failure.place) == (aspect, render(blamed, [2, 9, 26]), PLACE)
    assert failure.message == ("broken again" if aspect in ("errors", "poison") else f"broken {aspect}")


def test_a_failure_is_told_with_its_number_and_its_history():
    assert str(explore.Failure("rows", "prefill 2", "broken", None, 7)) == "history 7: prefill 2 → broken"


def test_cases_are_every_number_accepted_and_each_disturbance_once():
    player = Player()
    plain = explore._cases(player, False, False)
    assert [(case[0].start, case[0].budget, [round_.right for round_ in case[0].rounds]) for case in plain] == [
        *((0, 6, [right]) for right in range(4)), *((2, 6, [right] * 2) for right in range(4)),
    ]  # fmt: skip
    assert all(round_.offered == 3 for case in plain for round_ in case[0].rounds)
    every = explore._cases(player, True, True)
    assert every[:8] == plain and len(every) == 8 + 2 + 8
    middle = [case[0].rounds[1] for case in every[8:]]
    assert [repr(one.poison) for one in middle[:2]] == ["nan", repr(SENTINEL)] and all(r.rehearsed for r in middle[:2])
    assert [(one.error.verb, one.error.where) for one in middle[2:]] == [
        (verb, where) for verb in ("prefill", "draft", "verify", "commit") for where in (500, 999)
    ]
    for case in every[8:]:
        assert (case[0].start, case[0].rounds[0], case[0].rounds[2]) == (2, RoundPlan(1, 3), RoundPlan(0, 3))
        assert (case[0].rounds[1].right, case[0].rounds[1].offered) == (1, 3)
    assert len(explore._cases(player, True, False)) == 10 and len(explore._cases(player, False, True)) == 16


def test_where_k_varies_it_drops_to_every_smaller_one_and_rises_again():
    changed = explore._cases(Player(varies=True), False, False)[8:]
    most, none = RoundPlan(3, 3), RoundPlan(0, 0, asked=0)
    assert [case[0].rounds for case in changed] == [
        (most, none, most), (none, none, RoundPlan(1, 3)),
        (most, RoundPlan(1, 1, asked=1), most), (most, RoundPlan(2, 2, asked=2), most),
    ]  # fmt: skip
    assert {case[0].start for case in changed} == {2} and {case[0].budget for case in changed} == {6}


def test_a_budget_leaves_a_rounds_true_tokens_and_is_two_at_least():
    player = Player()
    player.baselines[1].asked = 12
    assert explore._budget(player) == 9
    player.k = 11
    assert explore._budget(player) == 2


def explored(player: Player, count: int = 24) -> tuple[explore.Exploration, list]:
    told = []
    return explore.explore(player, count, 0, lambda *of: told.append(of), "rollback"), told


def test_so_many_distinct_histories_are_played_the_same_for_a_seed():
    player = Player()
    found, told = explored(player)
    assert len(found.played) == 24 and found.failures == {} and found.poisons and found.errors
    assert told == [*((played, 24, "rollback") for played in range(24)), (24, 24, "")]
    assert set(player.history) == found.played
    assert player.history[0] == explore._cases(player, False, False)[0]
    other = Player()
    explored(other)
    assert other.history == player.history


def test_fewer_histories_than_cases_play_every_case():
    found, told = explored(Player(), 4)
    assert len(found.played) == 18 and told[-2:] == [(4, 4, "rollback"), (4, 4, "")] and len(told) == 19


def test_an_undisturbed_history_that_breaks_ends_the_exploration():
    found, _ = explored(Player(lambda history: "rows" if rounds_of(history)[0].right == 2 else None))
    assert list(found.failures) == ["rows"] and found.wrong is found.failures["rows"] and found.wrong.number == 3
    found, _ = explored(Player(lambda history: "state"))
    assert found.wrong.aspect == "state" and found.wrong.number == 1


def test_a_disturbance_that_breaks_is_left_out_and_the_others_go_on():
    player = Player(if_any("poison"))
    found, _ = explored(player)
    assert list(found.failures) == ["poison"] and found.wrong is None and not found.poisons and found.errors
    assert len(found.played) == 24 and not any(round_.poison for one in found.played for round_ in rounds_of(one))
    found, _ = explored(Player(if_any("error")))
    assert list(found.failures) == ["errors"] and found.poisons and not found.errors
    found, _ = explored(Player(if_any("rehearsed")))  # poison needs verbs that can be called again
    assert list(found.failures) == ["errors"]


def test_the_first_failure_of_an_aspect_is_kept():
    found = explore.Exploration(Player(), poisons=True)
    found.played.update([CALM, POISONED])
    for history in ("one", "two"):
        found.add(explore.Failure("errors", history, "broken", None))
    assert found.failures["errors"].history == "one" and found.failures["errors"].number == 2
    assert not found.poisons and not found.errors


def test_a_device_whose_verbs_cannot_be_called_again_or_poisoned_is_not_disturbed_so():
    found, _ = explored(Player(transactional=False))
    assert not found.poisons and not found.errors
    assert not any(r.poison or r.error or r.rehearsed for one in found.played for r in rounds_of(one))
    found, _ = explored(Player(poisons=False))
    assert not found.poisons and found.errors


def test_a_failure_that_random_histories_find_is_shrunk():
    """No case begins with the second prompt."""
    player = Player(lambda history: "rows" if history[0].start == 1 else None, transactional=False)
    player.k = 1
    found, _ = explored(player, 20)
    assert found.failures["rows"].history == "prefill 9, budget 8; accept 0 of 1"
    assert 4 < found.failures["rows"].number < 20


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (RoundPlan(1, 3), "accept 1 of 3"),
        (RoundPlan(1, 3, plain=True, asked=2), "plain round"),
        (RoundPlan(1, 2, end=True, asked=2), "accept 1 of 2, then EOS (K = 2 in this round)"),
        (RoundPlan(1, 3, rehearsed=True), "rehearse; accept 1 of 3"),
        (RoundPlan(1, 3, rehearsed=True, poison=SENTINEL), "poison 10000; accept 1 of 3"),
        (RoundPlan(1, 3, error=TapError("draft", 500)), "accept 1 of 3 (error in draft at 50 %)"),
        (RoundPlan(1, 3, error=TapError("verify", 999, True)), "accept 1 of 3 (error in verify at 100 %, round anew)"),
    ],
)
def test_a_round_is_told_in_words(plan, said):
    assert str(plan) == said
    error = TapError("prefill", 250)
    history = (SequencePlan(1, 6, (plan,), error), SequencePlan(0, 4, ()))
    assert render(history, [5, 9]) == f"prefill 9, budget 6 (error at 25 %); {said}; prefill 5, budget 4"


def test_a_calmer_history_keeps_what_is_named_alone():
    history = (SequencePlan(0, 6, RAISING[0].rounds, TapError("prefill", 1)),)
    assert calmer(history) == (SequencePlan(0, 6, (RoundPlan(1, 3),)),)
    assert calmer(history, "error")[0].error == TapError("prefill", 1)
    assert calmer(history, "error")[0].rounds[0] == RoundPlan(1, 3, error=TapError("draft", 500))
    assert calmer(history, "poison")[0].rounds[0] == RoundPlan(1, 3, poison=1.0)


def test_random_histories_stay_within_their_limits():
    from hypothesis import HealthCheck, given, settings

    seen: list = []

    @settings(max_examples=60, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(histories(HistoryLimits(3, 2, 5, True, True, True)))
    def draw(history):
        seen.append(history)

    draw()
    plans, sequences = [r for one in seen for r in rounds_of(one)], [s for one in seen for s in one]
    assert {len(one) for one in seen} == {1, 2} and {len(s.rounds) for s in sequences} <= {1, 2, 3, 4, 5}
    assert {s.start for s in sequences} == {0, 1} and {s.budget for s in sequences} == {2, 3, 4, 5}
    assert {r.asked for r in plans} == {None, 0, 1, 2} and {r.offered for r in plans} == {0, 1, 2, 3}
    assert all(r.right <= r.offered and r.rehearsed == (r.poison is not None) for r in plans)
    assert all(r.asked is None or r.offered == r.asked for r in plans) and any(r.right == r.offered == 3 for r in plans)
    assert {type(r.poison) for r in plans} == {type(None), float} and any(r.error and r.error.restart for r in plans)
    assert {r.error.verb for r in plans if r.error} == {"prefill", "draft", "verify", "commit"}
    assert {s.error.verb for s in sequences if s.error} == {"prefill"}
    assert any(r.plain for r in plans) and any(r.end for r in plans)
