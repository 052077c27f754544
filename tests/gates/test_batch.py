"""The gate of batches: what depends on a lane or on a neighbour fails in the check that asks for it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from parity import device
from parity.api import compare_dumps, run_device
from parity.builders import builder
from parity.device.faults import CATALOGUE
from parity.device.pipeline import Pipeline
from parity.errors import UsageError
from parity.factories import Factory
from parity.faults import FaultRunRequest, compare_planted
from parity.golden.views import PromptSlice
from tests.sample import WHOLE, by_night, sample

FAULTS = {name: fault for name, fault in CATALOGUE.items() if fault.gate == "batch"}
RED = {
    "batch-later-lanes-stale": "in other lanes",
    "batch-accept-least": "joining and leaving",
    "batch-budget-of-first": "budgets of their own",
    "batch-lengths-of-last": "in reverse order",
    "batch-argmax-of-neighbour": "joining and leaving",
    "batch-page-of-neighbour": "beside nobody",
    "batch-rows-dropped": "one prompt in all lanes",
    "batch-join-drafter-unwritten": "beside nobody",
    "batch-taps-crossed": "each lane's own tensors",
    "batch-race": "the same again",
}
"""A check of each fault's that has to fail."""
UNTAPPED = {"each lane's own tensors", "an error in one lane"}
"""What nobody can judge where nothing is tapped."""


@pytest.fixture
def judged(gate_checks, monkeypatch):
    """The gate's checks; by day of two lanes, where a device has as many as it is asked for."""
    if not WHOLE:
        monkeypatch.setattr("parity.gates.batch.LANES", 2)
    return partial(gate_checks, "batch")


@pytest.mark.parametrize("name", ["numpy", pytest.param("numpy,lanes=2", marks=by_night)])
def test_a_clean_device_passes(name, judged):
    checks = judged(name)
    assert {check.verdict for check in checks.values()} == {"pass"} and len(checks) == 13
    assert "the same bits" in checks["the same again"].evidence
    said = checks["beside nobody"].evidence
    assert "bound 256" in said or "the same bits" in said  # as the processor's products are tiled


def test_every_fault_of_a_batch_has_its_check():
    assert set(RED) == set(FAULTS)


@pytest.mark.parametrize("name", sample(FAULTS))
def test_what_depends_on_a_neighbour_fails(name, judged):
    checks = judged(f"parity.device.faults:{name.replace('-', '_')}")
    assert checks[RED[name]].verdict == "fail", {check.name: check.evidence for check in checks.values()}


@pytest.fixture
def planted_in(request):
    """By night the golden that faults are judged by: budgets part in it as well."""
    whole = request.getfixturevalue("family_golden") if WHOLE else None
    return whole("p-eagle") if whole else request.getfixturevalue("two_layer_golden")


@pytest.mark.parametrize("name", sample(name for name, fault in FAULTS.items() if fault.chained))
def test_a_comparison_names_the_stage_and_no_other(name, planted_in):
    """Over both prompts at once: a lane alone has no neighbours."""
    asked = FaultRunRequest(planted_in, "numpy", builder("numpy", planted_in))
    seen = compare_planted(asked, FAULTS[name], "chained")
    assert seen.placed, seen


@pytest.mark.parametrize(
    ("defect", "check", "verdict"),
    sample(
        [
            ("EndsAll", "an end token of one", "fail"),
            ("ForgetsWaiting", "a lane that waits", "fail"),
            ("Parting", "budgets of their own", "fail"),
            ("Ragged", "other numbers of drafts", "fail"),
            ("Grows", "joining and leaving", "fail"),
            ("HalfDone", "an error in one lane", "fail"),
            ("Races", "the same again", "warn"),
        ],
        lambda row: row[0],
        lambda row: row[2],
    ),
)
def test_what_only_one_event_in_a_batch_shows_is_asked_for(defect, check, verdict, judged):
    """Each passes every check but the one that brings the event about, or those behind it."""
    checks = judged(f"tests.gates.batch_defects:load,defect={defect}")
    assert checks[check].verdict == verdict, {check.name: check.evidence for check in checks.values()}
    if defect in ("EndsAll", "HalfDone", "Parting"):
        failed = {name: each.evidence for name, each in checks.items() if each.verdict == "fail"}
        assert [*failed] == [check], failed


@by_night
def test_a_device_that_always_has_lanes_is_alone_in_its_first(judged):
    assert {each.verdict for each in judged("tests.gates.batch_defects:load,defect=Wrapped").values()} == {"pass"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests.gates.test_batch:without_lanes", "takes no lanes"),
        ("parity.device.variants:batch_2", "it has no lanes"),
        ("tests.gates.test_batch:four", "four or none"),
    ],
)
def test_a_device_without_lanes_is_not_judged(name, said, judged):
    (check,) = judged(name).values()
    assert check.verdict == "not judged" and said in check.evidence


def without_lanes(target, drafter, k, precision):
    return device.load(target, drafter, k, precision)


def four(target, drafter, k, precision, lanes: int = 1):
    if lanes not in (1, 4):
        raise ValueError("four or none")
    return device.load(target, drafter, k, precision, lanes=lanes)


@pytest.mark.parametrize(
    ("fault", "check"),
    sample(
        [
            *([("none", "")] if WHOLE else ()),
            ("batch-budget-of-first", "budgets of their own"),
            ("batch-page-of-neighbour", "other numbers of drafts"),
        ],
        lambda row: row[0],
        lambda row: bool(row[1]),
    ),
)
def test_what_verbs_return_is_compared_where_nothing_is_tapped(fault, check, judged):
    checks = judged(f"tests.gates.host_only:load,fault={fault}")
    untapped = UNTAPPED
    if check and not WHOLE:  # all of them are gone through on the clean device
        untapped = {"each lane's own tensors"}
        checks = {each: checks[each] for each in (check, *untapped)}
    unseen = {name: each.verdict for name, each in checks.items() if each.verdict != "pass"}
    assert {name for name, each in unseen.items() if each == "not judged"} == untapped
    assert (check in unseen and unseen[check] == "fail") if check else "fail" not in unseen.values(), unseen


@by_night
def test_a_device_that_refuses_float32_is_judged_in_its_own_precision(judged):
    """In whatever way it refuses: an error of Python's own counts."""
    checks = judged("tests.gates.test_batch:only_bfloat16,lanes=2")
    assert {each.verdict for each in checks.values()} == {"pass"}
    assert "noise" in checks["beside nobody"].evidence or "the same bits" in checks["beside nobody"].evidence


def only_bfloat16(target, drafter, k, precision, lanes: int = 1):
    if precision != "bfloat16":
        raise ValueError(f"the weights are bfloat16: no precision {precision}")
    return device.load(target, drafter, k, precision, lanes=lanes)


def test_one_prompt_has_no_neighbours(judged, shallow_golden):
    (check,) = judged("numpy", PromptSlice(shallow_golden, 0, 2)).values()
    assert check.verdict == "inconclusive"


def test_lanes_that_no_prompt_sits_in_are_said(shallow_golden, tmp_path):
    run = run_device(shallow_golden, "numpy,lanes=3", "chained", out=tmp_path / "run", free=False)
    assert run.manifest.case.lanes == 3
    assert "the last 1 of 3 lanes" in compare_dumps(shallow_golden, run).not_exercised


def test_a_device_has_the_lanes_that_are_asked_for(tiny):
    with pytest.raises(UsageError, match="was asked for lanes 2 and describes itself as lanes 3"):
        Factory("tests.gates.test_batch:three,lanes=2", tiny / "target", tiny / "drafter", 3)("float32")


def three(target, drafter, k, precision, lanes: int = 3):
    return device.load(target, drafter, k, precision, lanes=3)


@pytest.mark.parametrize(("lanes", "said"), [(3, "lacks verbs of parity.seam.Batched"), (0, "1 to"), (2.0, "1 to")])
def test_lanes_without_their_verbs_are_refused(lanes, said, tiny, monkeypatch):
    describe = Pipeline.describe
    monkeypatch.setattr(Pipeline, "describe", lambda self: replace(describe(self), lanes=lanes))
    with pytest.raises(UsageError, match=said):
        Factory("numpy", tiny / "target", tiny / "drafter", 3)("float32")
