"""What is said of dumps that keep less than all, bounds of quantities and routers, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.kept import _sketchable, refuse_without, resting_on, unscored, with_choices, with_rows
from parity.compare.passes import ChainPasses
from parity.compare.quantities import QUANTITIES, QuantityBound, bounds_of
from parity.compare.report import WHOLE, Place, StageResult
from parity.compare.routed import Routed
from parity.compare.rows import Clock, StageRows
from parity.errors import UsageError
from parity.families import FAMILIES
from parity.golden.keeping import Form
from parity.stages import declared

NAMES = declared(2, 1)


def result(verdict: str = "pass", note: str = "", **more) -> StageResult:
    named = NAMES["target.layers.0.out"]
    base = StageResult(named.name, named.stage.template, 0, "noise", verdict, "as a test has it", rows=9)
    return replace(base, note=note, **more)


@pytest.mark.parametrize("name", ["l2", "columns", "rows", "top1_missed"])
def test_statistics_columns_and_rows_may_be_left_out(name):
    assert refuse_without([name]) is refuse_without(["l2", name]) is None


def test_what_may_not_be_left_out_is_told_in_forty_letters():
    with pytest.raises(UsageError) as refused:
        refuse_without(["l2", "z" * 50])
    words = "it takes statistics of a policy, `columns` of logits, and `rows`"
    assert str(refused.value) == f"--without {'z' * 40}: {words}"


def counted(*lacking: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(lacking=one, due=5) for one in lacking]


def test_rows_that_the_run_does_not_keep_make_a_pass_inconclusive_unless_left_out():
    assert with_rows(result(), counted(0, 0), ()) == result()
    found = with_rows(result(evidence="sketch", not_judged=("largest",)), counted(0, 3), ())
    said = "the run keeps 7 of the 10 rows that the golden has: --without rows leaves the rest out"
    assert (found.verdict, found.note, found.evidence) == ("inconclusive", said, "sketch, 7 of 10 rows")
    assert found.not_judged == ("largest", "rows")
    left = with_rows(result(), counted(1), ("rows",))
    assert (left.verdict, left.note, left.not_judged) == ("pass", "", ("rows",))
    assert with_rows(result("fail", "why"), counted(1), ()).verdict == "fail"
    assert with_rows(result("fail", "why"), counted(1), ()).note == "why"


@pytest.mark.parametrize(
    ("left", "unknown", "without", "verdict", "note", "blind"),
    [
        (0, 0, (), "pass", "", ()),
        (2, 0, (), "inconclusive",
         "2 of 7 rows hold another choice, whose scores are not kept: --without rows leaves it out", ("rows",)),
        (2, 0, ("rows",), "pass", "", ("rows",)),
        (0, 3, ("rows",), "inconclusive",
         "3 of 7 rows hold a choice of which the golden keeps no logit: more of them settle it", ()),
        (2, 3, (), "inconclusive",
         "3 of 7 rows hold a choice of which the golden keeps no logit: more of them settle it", ("rows",)),
    ],
)  # fmt: skip
def test_choices_without_scores_settle_nothing(left, unknown, without, verdict, note, blind):
    found = with_choices(result(), 7, left, unknown, without)
    assert (found.verdict, found.note, found.not_judged, found.rows) == (verdict, note, blind, 7)
    assert with_choices(result("fail", "why"), 7, left, unknown, without).verdict == "fail"


def rows_of(values, device, position) -> StageRows:
    nothing = np.zeros(len(values), np.int64)
    return StageRows(
        NAMES["target.tokens"], np.array(values), np.array(device), None, nothing, nothing, np.array(position)
    )


def test_choices_in_rows_that_have_no_scores_are_counted_where_they_differ():
    scores = rows_of([0, 0], [0, 0], [4, 6])
    there, others = unscored(rows_of([1, 2, 3, 4], [9, 2, 9, 8], [4, 5, 6, 7]), scores)
    assert there.tolist() == [0, 2] and others == 1
    sets = rows_of([[1, 2], [3, 4], [5, 6]], [[2, 1], [4, 3], [5, 7]], [5, 7, 8])
    assert unscored(sets, scores)[1] == 1  # in whatever order


def test_a_stage_is_sketched_where_both_sides_can_be():
    def sketchable(*forms: Form) -> bool:
        return _sketchable(SimpleNamespace(sides=[SimpleNamespace(form=form) for form in forms]))

    assert (
        sketchable(Form(8), Form()) and sketchable(Form(), Form(8)) and sketchable(Form(8, 0, 4), Form(8), Form(top=1))
    )
    assert not sketchable(Form(top=4), Form(8)) and not sketchable(Form(8), Form(top=4))


def test_what_verdicts_rest_on_is_told_once_each():
    def dump(positions: str) -> SimpleNamespace:
        return SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(positions=positions)))

    stages = [result(), result(evidence="top 4", not_judged=("columns",)), result(), result(not_judged=("worst_row",))]
    assert resting_on(dump(""), dump(""), stages, ()) == (
        f"3 stages by {'whole tensors'}, 1 stages by top 4",
        "not judged by this evidence: columns in 1 stages, worst row in 1 stages",
    )
    told = resting_on(dump("0-3"), dump("7"), stages, ("columns", "worst_row", "rows"))
    assert told == (
        "of the prompts the rows at positions 0-3, and the last two",
        "of the prompts the rows at positions 7, and the last two",
        "3 stages by whole rows of those, 1 stages by top 4",
        "not judged by this evidence (left out by --without): columns in 1 stages, worst row in 1 stages",
    )
    assert len(resting_on(dump("7"), dump("7"), [result()], ())) == 2 and result().evidence == WHOLE
    assert "left out" not in resting_on(dump(""), dump(""), stages, ("columns",))[-1]


def quantity(name: str):
    return next(one for one in QUANTITIES if one.fact == name)


def bounds(name: str, values, bad) -> list[QuantityBound]:
    facts = SimpleNamespace(known=lambda fact: np.array(values))
    return [*bounds_of(quantity(name), facts, np.array(bad, bool))]


def said(name: str, values, bad) -> dict[str, tuple]:
    return {one.says: (one.least, one.most, one.tried) for one in bounds(name, values, bad)}


def test_a_quantity_is_bounded_by_the_bad_rows():
    values = [0, 1, 2, 3, 3, 5]
    assert said("round", values, [0, 0, 1, 0, 0, 0]) == {
        "round 2 only": (2, 2, 5), "from round 2 on": (2, None, 5), "up to round 2": (None, 2, 5),
    }  # fmt: skip
    assert said("round", values, [0, 1, 0, 1, 0, 0]) == {
        "from round 1 on": (1, None, 5), "up to round 3": (None, 3, 5), "rounds 1 to 3": (1, 3, 25),
    }  # fmt: skip
    assert said("round", values, [1, 0, 0, 0, 0, 0]) == {"round 0 only": (0, 0, 5)}
    assert said("round", values, [0, 0, 0, 0, 0, 1]) == {"round 5 only": (5, 5, 5), "from round 5 on": (5, None, 5)}
    assert said("round", values, [1, 0, 0, 0, 0, 1]) == said("round", values, [0] * 6) == {}
    assert said("round", [-1, 1, 2], [1, 1, 0]) == {} and said("round", [-1, 1, 2], [0, 1, 0])["round 1 only"][2] == 2
    nan = float("nan")  # as a routing weight of infinite scores
    assert said("least_share", [nan, nan], [1, 0]) == said("least_share", [nan, 0.5, 0.2], [1, 1, 0]) == {}
    assert [one.closed for one in bounds("round", values, [0, 1, 0, 1, 0, 0])] == [False, False, True]
    assert not QuantityBound("", 2, 2, 1).closed


def test_quantities_are_told_in_their_own_words():
    assert next(iter(said("accepted", [0, 1, 2], [1, 0, 0]))) == "rounds behind one that accepted nothing"
    assert [*said("accepted", [0, 1, 2], [0, 1, 0])] == [
        "rounds behind one that accepted one draft", "rounds behind one that accepted one draft or more",
        "rounds behind one that accepted one draft or fewer",
    ]  # fmt: skip
    assert "rounds that accept 2 drafts" in said("accepts", [0, 2, 3], [0, 1, 0])
    assert [*said("least_share", [0.1, 0.123456, 0.5], [0, 1, 0])] == [
        "rows of routing weights of 0.1235 or more", "rows with a routing weight up to 0.1235",
    ]  # fmt: skip


def test_the_best_expert_and_the_smallest_weight_are_of_the_chosen():
    chosen, scores = np.array([[2, 0], [1, 2]]), np.array([[1.0, 9.0, 2.0], [5.0, 0.0, 3.0]])
    found = Routed.of(chosen, scores)
    assert {expert: rows.tolist() for expert, rows in found.experts.items()} == {
        0: [True, False], 1: [False, True], 2: [True, True],
    }  # fmt: skip
    assert found.best.tolist() == [2, 2]
    assert found.least == pytest.approx([1 / (1 + np.e), 1 / (1 + np.exp(3))])
    for odd in (None, scores[:1], scores[0], scores[:, :2]):
        without = Routed.of(chosen, odd)
        assert [*without.experts] == [0, 1, 2] and without.best is without.least is None
    assert Routed.of(np.array([[-1, 0]]), scores[:1]).best is None
    assert Routed.of(None, scores) == Routed.of(chosen[0], scores) == Routed()


def place(stage: str, round_: int = 1, position: int | None = None, prompt: int = 0) -> Place:
    return Place(stage, None, prompt, round_, position)


def test_a_chains_rows_are_passes_of_their_own_and_what_follows_comes_last():
    """A prompt of 5, rounds of 2 and 1: the drafter's cache has 4 rows, then 6."""
    clock = Clock(5, (1, 2, 1), (4, 6, 7), FAMILIES["eagle-3"])
    chain, last = ChainPasses((clock,)), clock.first("drafter.draft_tokens", 1, 0)
    numbers = [chain.number(place("drafter.logits", 1, position)) for position in (None, 0, last, last + 1, last + 3)]
    assert numbers == [0, 0, 0, 1, 3]
    assert chain.number(place("target.logits", 1)) == 7 == clock.length(1) and chain.number(place("x", 0, 9)) == 0
    assert ChainPasses().number(place("drafter.logits", 1, 99)) == 0
    early, late = place("drafter.logits", 1, last + 1), place("drafter.layers.0.out", 1, last + 2)
    assert chain.later(late, early) and not chain.later(early, late) and not chain.later(early, early)
    assert not chain.later(place("drafter.logits", 2, 0), early)  # committed rows
    assert not chain.later(late, place("target.logits", 0)) and not chain.later(place("verify.logits", 1), early)
