"""The gate of batches: what depends on a lane or on a neighbour fails in the check that asks for it."""

from __future__ import annotations

import pytest

from parity.device.faults import CATALOGUE
from parity.gates import run_gate
from parity.gates.context import GateContext
from parity.golden.views import PromptSlice
from parity.producers import builder
from tests.sample import sample

FAULTS = {name: fault for name, fault in CATALOGUE.items() if fault.gate == "batch"}
RED = {
    "batch-later-lanes-stale": "in other lanes",
    "batch-accept-least": "joining and leaving",
    "batch-budget-of-first": "budgets of their own",
    "batch-lengths-of-last": "joining and leaving",
    "batch-argmax-of-neighbour": "joining and leaving",
    "batch-page-of-neighbour": "beside nobody",
    "batch-rows-dropped": "one prompt in all lanes",
    "batch-join-drafter-unwritten": "beside nobody",
    "batch-taps-crossed": "each lane's own tensors",
    "batch-race": "the same again",
}
"""A check of each fault's that has to fail."""


@pytest.fixture
def judged(shallow_golden, tmp_path):
    """The gate's checks of a device, by name."""

    def run(name, golden=shallow_golden):
        context = GateContext(golden, name, builder(name, golden), "bfloat16", tmp_path)
        return {check.name: check for check in run_gate(context, "batch").checks}

    return run


@pytest.mark.parametrize("name", ["numpy", "numpy,lanes=2"])
def test_a_clean_device_passes(name, judged):
    checks = judged(name)
    assert {check.verdict for check in checks.values()} == {"pass"} and len(checks) == 7
    assert "the same bits" in checks["the same again"].evidence
    assert "bound 256" in checks["beside nobody"].evidence


def test_every_fault_of_a_batch_has_its_check():
    assert set(RED) == set(FAULTS)


@pytest.mark.parametrize("name", sample(FAULTS))
def test_what_depends_on_a_neighbour_fails(name, judged):
    checks = judged(f"parity.device.faults:{name.replace('-', '_')}")
    assert checks[RED[name]].verdict == "fail", {check.name: check.evidence for check in checks.values()}


def test_a_device_without_lanes_is_not_judged(judged):
    (check,) = judged("parity.device.variants:plain").values()
    assert check.verdict == "not judged" and "takes no lanes" in check.evidence


def test_one_prompt_has_no_neighbours(judged, shallow_golden):
    (check,) = judged("numpy", PromptSlice(shallow_golden, 0, 2)).values()
    assert check.verdict == "inconclusive"
