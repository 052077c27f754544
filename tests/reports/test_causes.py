"""What is wrong is told once, with every cell that it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parity.nightly.records import DiagnosisSummary
from parity.reports.page.causes import causes
from tests.reports.nights import name, step, told

TONIGHT = name(20)


@pytest.fixture(scope="module")
def red(tmp_path_factory):
    """The recorded night's red cell, without a past."""
    view = told(tmp_path_factory.mktemp("nights") / "night")
    return replace(next(cell for cell in view.cells if cell.verdict == "fail"), changes=())


def cells(red, *updates):
    return [
        replace(red, cell=red.cell.model_copy(update={"axes": red.cell.axes.model_copy(update={"k": k})}), **update)
        for k, update in enumerate(updates, 1)
    ]


def diagnosed(*titles):
    return {
        "diagnosis": DiagnosisSummary(
            causes=tuple((one, f"{one} 99 %", "fix") for one in titles), titles=titles, words=""
        )
    }


def since(night):
    from parity.reports.page.past import ChangeView

    return {"changes": (ChangeView(step(since_night=night, since_date=night[:8]), "", None),)}


def test_cells_with_one_defect_are_one_cause_and_the_widest_comes_first(red):
    night = cells(red, diagnosed("b"), diagnosed("a"), diagnosed("a", "b"), diagnosed("b"), {"verdict": "pass"})
    found = causes(night, TONIGHT)
    assert [(cause.title, cause.extent, cause.evidence[1]) for cause in found] == [
        ("B", "3 of 5 cells", "fix"), ("A", "2 of 5 cells", "fix")
    ]  # fmt: skip


def test_since_when_is_the_earliest_night_and_unknown_where_one_cell_has_none(red):
    a, early = diagnosed("a"), name(17)
    (found,) = causes(cells(red, a | since(TONIGHT), a | since(TONIGHT)), TONIGHT)
    assert found.extent == "2 of 2 cells, since tonight"
    (found,) = causes(cells(red, a | since(TONIGHT), a | since(early)), TONIGHT)
    assert found.since == f"since {early[:8]}"
    (found,) = causes(cells(red, a | since(TONIGHT), a), TONIGHT)
    assert found.since == ""


def test_without_a_diagnosis_cells_share_their_first_stage_or_their_error(red):
    plain = {"diagnosis": None}
    broken = {"verdict": "inconclusive", "error": "no device"}
    night = cells(
        red,
        plain | {"first": "target.embed, prompt 0"},
        plain | {"first": "target.embed, prompt 3"},
        plain | {"first": "gate lossless: a, b"},
        plain | broken,
        plain | broken,
        plain | {"verdict": "inconclusive", "first": "gate acceptance: free"},
    )
    assert [(cause.title, len(cause.cells)) for cause in causes(night, TONIGHT)] == [
        ("Wrong first at target.embed", 2),
        ("Wrong first at gate lossless: a, b", 1),
        ("no device", 2),
        ("No evidence: gate acceptance: free", 1),
    ]


def test_a_failing_and_a_broken_cell_are_never_one_cause(red):
    same = {"first": "", "diagnosis": None}
    found = causes(cells(red, same, same | {"verdict": "disputed"}), TONIGHT)
    assert [cause.verdict for cause in found] == ["fail", "disputed"]


def test_what_stays_unexplained_is_a_cause_of_its_own(red):
    some = diagnosed("a")["diagnosis"].model_copy(update={"unexplained": "drafter.logits"})
    found = causes(cells(red, {"diagnosis": some}), TONIGHT)
    assert [cause.title for cause in found] == ["A", "Unexplained at drafter.logits"]
