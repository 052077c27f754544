"""The hardware gates, for pytest: every stage of a device in both modes, against a golden.

    pytest --pyargs parity.hardware_gates --device package.module:factory --golden GOLDEN

runs them wherever parity is installed; without `--device` on the Neuron device, and skips with a reason where there is
none. What a device does not show is skipped with the stage that it first shows in.
"""

from __future__ import annotations

import pytest

from parity.api import compare_dumps, open_golden, run_device
from parity.compare.report import Report
from parity.golden.fields import Mode
from parity.golden.trust import trusted
from parity.golden.views import TrustedGolden
from parity.producers import dump_golden
from parity.stages import TABLE

pytestmark = pytest.mark.neuron


@pytest.fixture(scope="module")
def golden(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> TrustedGolden:
    """The golden named by --parity-golden; one of the tiny pair, which needs torch, by default."""
    named = pytestconfig.getoption("--parity-golden")
    return open_golden(named) if named else trusted(dump_golden(out=tmp_path_factory.mktemp("golden") / "golden"))


@pytest.fixture(scope="module", params=["local", "chained"])
def report(request: pytest.FixtureRequest, device_name: str, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The device's comparison with the golden, once for each mode."""
    truth: TrustedGolden = request.getfixturevalue("golden")
    mode: Mode = request.param
    precision = request.config.getoption("--parity-precision")
    run = run_device(truth, device_name, mode, precision, out=tmp_path_factory.mktemp("hardware") / mode)
    return compare_dumps(truth, run)


def test_structure_holds(report: Report) -> None:
    said = [finding.message for finding in report.findings]
    assert not said, "; ".join(said)  # an editable install's assertions are not rewritten to show what they compare


@pytest.mark.parametrize("family", [stage.template for stage in TABLE])
def test_stage_is_within_its_bounds(family: str, golden: TrustedGolden, report: Report) -> None:
    names = [name for name, named in golden.declared.items() if named.stage.template == family]
    members = {stage.stage: stage.verdict for stage in report.stages if stage.family == family}
    if not names:
        pytest.skip("not of this golden")
    if report.not_shown.keys() >= {*names}:
        pytest.skip(f"not shown by the device; shows first in {report.not_shown[names[0]] or 'no other stage'}")
    assert members.keys() | report.not_shown.keys() >= {*names}, f"{family} was not compared"
    wrong = {stage: verdict for stage, verdict in members.items() if verdict not in ("pass", "warn")}
    assert not wrong, str(wrong)


def test_verdict_is_pass(report: Report) -> None:
    assert report.exit_code == 0, report.first_summary or f"{report.verdict}: {report.own_experts}"
