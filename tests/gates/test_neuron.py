"""The hardware gates: skipped without a Neuron device, run on any engine with --device."""

from __future__ import annotations

import pytest

from parity.api import compare_dumps, run_device
from parity.stages import PAGES, QUANTISED, TABLE

pytestmark = pytest.mark.neuron


@pytest.fixture(scope="module", params=["local", "chained"])
def report(request, device_name, pytestconfig, tmp_path_factory):
    """The device's comparison against the golden, once for each mode."""
    golden = request.getfixturevalue("full_golden")
    out = tmp_path_factory.mktemp("neuron") / request.param
    run = run_device(golden, device_name, request.param, pytestconfig.getoption("--parity-precision"), out=out)
    return compare_dumps(golden, run)


def test_structure_holds(report):
    assert [finding.message for finding in report.findings] == []


@pytest.mark.parametrize("family", [stage.template for stage in TABLE if stage.needs not in (PAGES, QUANTISED)])
def test_stage_is_within_its_bounds(family, report):
    members = [stage for stage in report.stages if stage.family == family]
    assert members, f"{family} was not compared"
    assert {stage.stage: stage.verdict for stage in members if stage.verdict not in ("pass", "warn")} == {}


def test_verdict_is_pass(report):
    assert report.exit_code == 0, str(report.first)
