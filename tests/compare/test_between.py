"""Device against device: their difference in x noise of the golden's floor, judged by the same bounds."""

from __future__ import annotations

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from parity.api import compare_dumps, device_difference, run_device
from parity.compare.between import DeviceDifference
from parity.errors import UsageError
from parity.golden.trust import trusted
from parity.golden.views import GoldenSlice
from parity.reports.verdict import print_verdict
from tests.sample import WHOLE, first

FAULTY = "parity.device.faults:rope_concentration"


@pytest.fixture(scope="module")
def golden(shallow_golden):
    """One prompt and two rounds of it."""
    return shallow_golden if WHOLE else GoldenSlice(trusted(shallow_golden), 0, 2)


@pytest.fixture(scope="module")
def run(golden, tmp_path_factory):
    """Runs by (device, mode, precision), made once."""
    made = {}

    def get(device, mode="local", precision="bfloat16"):
        key = device, mode, precision
        if key not in made:
            out = tmp_path_factory.mktemp("between") / "run"
            made[key] = run_device(golden, device, mode, precision, out=out, free=False)
        return made[key]

    return get


def against(golden, run, other):
    return compare_dumps(golden, DeviceDifference(golden, run, other))


def printed(report) -> str:
    """What a terminal shows of it, in one line."""
    out = StringIO()
    print_verdict(Console(file=out, width=400), report)
    return " ".join(out.getvalue().split())


@pytest.mark.parametrize("mode", first(["chained", "local"]))
def test_clean_devices_differ_by_less_than_the_noise(mode, golden, run):
    report = against(golden, run("numpy", mode), run("parity.device.variants:reversed", mode))
    assert report.verdict == "pass", report.first
    assert report.device == "numpy against numpy, reversed"
    parted = [stage.stage for stage in report.stages if stage.x.get("l2", 0) > 0]
    assert parted, "another order of sums gives other bits"


def test_a_device_does_not_differ_from_itself(golden, run):
    report = against(golden, run("numpy"), run("numpy"))
    assert report.verdict == "pass"
    assert {stage.x["l2"] for stage in report.stages if stage.x} == {0.0}
    assert not any(stage.marks for stage in report.stages), "nothing is too precise in a difference"


@pytest.mark.parametrize("turned", first([True, False]))
def test_a_fault_of_either_device_is_placed(turned, golden, run):
    pair = (run(FAULTY), run("numpy"))
    report = against(golden, *(pair[::-1] if turned else pair))
    assert report.verdict == "fail"
    assert report.first.stage == compare_dumps(golden, run(FAULTY)).first.stage
    assert f"--against {pair[0 if turned else 1].folder}" in report.reproduce
    told = printed(report)
    assert "one of the two devices'" in told and "parity diagnose" not in told, "nothing says that the first is wrong"
    assert all(f"parity diff {one.folder} --golden" in told for one in pair)


def test_a_fault_that_both_share_cancels_out_and_only_the_golden_sees_it(golden, run):
    report = against(golden, run(FAULTY), run(FAULTY))
    assert report.verdict == "pass" and "of the difference of two devices, not of either" in printed(report)
    assert compare_dumps(golden, run(FAULTY)).verdict == "fail"


def test_a_choice_of_one_device_alone_is_judged_by_the_golden(golden, run):
    """Rows where the two agree are the golden's; another choice, of whichever of them, takes the row's place."""
    true, right, wrong = np.arange(6).reshape(3, 2), np.arange(6).reshape(3, 2), np.arange(6).reshape(3, 2)
    wrong[1] = 9
    place = ("bfloat16", 0, 0, "target.layers.0.experts")
    for mine, theirs, expected in ((right, wrong, wrong), (wrong, right, wrong), (wrong, wrong, true)):
        view = DeviceDifference(golden, run("numpy"), run("numpy"))
        sides = [
            type("Side", (), {"contents": lambda self, *_where, value=value: value})() for value in (true, mine, theirs)
        ]
        view.golden, view.run, view.other = sides
        np.testing.assert_array_equal(view.contents(*place), expected)


def test_runs_of_two_modes_or_precisions_are_refused(golden, run):
    with pytest.raises(UsageError, match="two devices are compared in one mode"):
        DeviceDifference(golden, run("numpy"), run("numpy", "chained"))
    with pytest.raises(UsageError, match="two devices are compared in one precision"):
        DeviceDifference(golden, run("numpy"), run("numpy", "local", "float32"))


def test_what_either_run_lacks_is_a_failure(golden, run, tmp_path):
    few = run_device(golden, "numpy", "local", stages=("logits",), out=tmp_path / "few", free=False)
    for pair in ((run("numpy"), few), (few, run("numpy"))):
        report = against(golden, *pair)
        assert report.verdict == "fail"
        assert "numpy: target.embed is missing: the run does not declare it" in [one.message for one in report.findings]
    assert (
        compare_dumps(golden, device_difference(golden, few, str(run("numpy").folder)), ("logits",)).verdict == "pass"
    )
