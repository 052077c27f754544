"""The order of a search: what is asked before what, where passes are right and where several layers may be wrong."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.predicate import Predicate
from parity.diagnose import clock
from parity.diagnose.clock import SearchClock
from parity.diagnose.conditional import only
from parity.diagnose.search.stage_trials import StageTrials
from parity.diagnose.search.tiers import PROMISING, HypothesisSearch

GAP = np.array([3.0, 4.0])


class MadeUp(StageTrials):
    """A failing stage of which a test says all."""

    def __init__(self, hypotheses, passes="", several=False, known=()):
        self.hypotheses, self.passes, self.gap, self.several_layers = hypotheses, passes, GAP, several
        self.trials, self.first, self.known = None, None, known

    def values(self, hypothesis):
        return ["all"]

    def single_layers(self, hypothesis):
        return [0, 1] if hypothesis.layered else []

    def each(self, many):
        return [assumed for ((assumed, _),) in many]


def hypothesis(id: str, cost: int = 1, passes: str = "", layered: bool = False):
    return SimpleNamespace(id=id, cost=cost, passes=passes, layered=layered, part="")


def search(*hypotheses, short: bool = False, **stage) -> HypothesisSearch:
    made = HypothesisSearch.__new__(HypothesisSearch)
    made.stage, made.clock, made.short, made.ended = MadeUp(hypotheses, **stage), SearchClock(), short, False
    return made


@pytest.mark.parametrize(
    ("stage", "order"),
    [
        ({}, ["of single parts", "alone", "in single layers", "with a fitted parameter", "under a condition"]),
        ({"several": True}, ["alone", "of single parts", "in single layers"]),
        (
            {"passes": "verify"},
            ["of single parts", "alone", "under a condition", "in such passes", "under a condition"],
        ),
        ({"short": True}, ["alone", "in single layers", "with a fitted parameter", "under a condition"]),
    ],
)
def test_what_is_asked_first(stage, order):
    names = [name for name, _ in search(**stage)._tiers([])]
    assert names[: len(order)] == order
    assert (names[-1] == "of single parts") == stage.get("short", False)


def test_what_would_show_in_a_right_prefill_comes_last():
    late, such, likely = hypothesis("late"), hypothesis("such", 2, "verify"), hypothesis("likely", 2)
    of = search(late, such, likely, passes="verify")
    groups = {name: [[one.id for one in tier] for tier in tiers] for name, tiers in of._tiers([]) if name in SAID}
    assert groups == {"alone": [["likely"]], "in such passes": [["such"]], "of every pass": [["late"]]}


SAID = ("alone", "in such passes", "of every pass")


WHERE = Predicate("even rounds only", lambda facts: facts.round % 2 == 0)


@pytest.mark.parametrize(
    ("known", "value", "asked"),
    [
        ("window", 8, ["window-drafter"]),
        ("window-drafter", 8, ["window"]),
        ("layers", "all", ["layers-drafter"]),
        ("layers", 3, []),
        ("sinks", 8, []),
    ],
)
def test_what_is_known_of_one_model_is_asked_of_the_other_first_under_its_condition(known, value, asked):
    layers = hypothesis("layers-drafter", layered=True)
    own = [hypothesis("window"), hypothesis("window-drafter"), layers]
    for where in (None, WHERE):
        held = only(hypothesis(known), where) if where else hypothesis(known)
        of = search(*own, known=[(held, value)])
        assert of._tiers([])[1][0] == "of the other model"
        given = [one for ((one, _),) in of._of_the_other_model()]
        assert [one.of.id if where else one.id for one in given] == asked
        assert all(one.where is WHERE for one in given if where)


def test_single_layers_are_asked_first_where_all_of_them_promise_most():
    many = [hypothesis(f"other {number:02}", layered=True) for number in range(PROMISING)]
    right, along = hypothesis("right", cost=3, layered=True), np.array([6.0, 8.0])
    across = np.array([4.0, -3.0])
    made = [SimpleNamespace(assumed=((right, "all"),), moved=along)]
    made += [SimpleNamespace(assumed=((one, "all"),), moved=across) for one in many]
    of = search(*many, right, hypothesis("no layers"))
    first, rest = of._in_single_layers(made)
    assert [one.id for one in first][:4] == ["right", "right", "other 00", "other 00"]
    assert len(first) == 2 * PROMISING and {one.id for one in rest} == {many[-1].id}
    assert next(one.id for one in next(of._in_single_layers([]))) == "other 00"


@pytest.mark.parametrize(
    ("direction", "left"),
    [(GAP * 2, 0.0), (np.array([4.0, -3.0]), 1.0), (np.zeros(2), 1.0), (np.ones(3), 1.0), (None, 1.0)],
)
def test_what_a_direction_takes_off_an_error(direction, left):
    assert MadeUp([]).left_along(direction) == pytest.approx(left)


ALL = ("listed", "dearer", "layer", "fitted", "conditional")


@pytest.mark.parametrize(
    ("doubted", "spoils", "narrow", "asked", "taken"),
    [
        ((), (), (), ["listed"], "listed"),
        (("listed",), (), (), ["listed", "fitted"], "fitted"),
        (("listed", "fitted"), (), (), ["listed", "fitted"], "fitted"),
        ((), ("listed",), (), ["listed", "conditional"], "conditional"),
        ((), ALL, (), ["listed", "conditional"], "conditional"),
        ((), (), ("listed", "dearer", "layer", "fitted"), [*ALL], "conditional"),
        ((), (), ALL, [*ALL], "conditional"),
    ],
)
def test_more_is_asked_before_a_cause_is_taken_that_may_be_another(doubted, spoils, narrow, asked, taken):
    """A listed value that settles the stage, and leaves another that it changes, may be another's near relative; where
    it breaks another prompt, or leaves its like in another layer, what is wrong may hold under a condition."""
    of, made = search(), []
    tiers = [(name, iter([[SimpleNamespace(id=id, settles=True)] for id in ids])) for name, ids in (
        ("alone", ["listed", "dearer"]), ("in single layers", ["layer"]), ("with a fitted parameter", ["fitted"]),
        ("under a condition", ["conditional"]),
    )]  # fmt: skip
    of._tiers = lambda trials: tiers
    of._try_all = lambda tier, trials, what, rest: trials.extend(tier)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parity.diagnose.search.tiers.ranked_trials", list)
        said = [lambda one, ids=ids: one.id in ids for ids in (doubted, spoils, narrow)]
        confirmed, made = of.best(lambda got: got[-1], *said)
    assert [one.id for one in made] == asked and confirmed.id == taken


@pytest.mark.parametrize("short", [True, False])
def test_a_name_that_is_all_that_is_missing_is_not_confirmed_once_its_time_is_up(short, monkeypatch):
    monkeypatch.setattr(clock, "monotonic", lambda: 85.0)
    made = search(short=short)
    made.clock = SearchClock(100.0, begun=0.0)

    def confirm(settling):
        made.clock.check()
        return "named"

    assert made._confirmed(confirm, []) == (None if short else "named") and made.ended == short
    made.clock = SearchClock(100.0, begun=30.0)
    assert made._confirmed(confirm, []) == "named"
