"""The boundary gate: clean devices end cleanly, planted ones overrun, overwrite or refuse wrongly."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from parity.builders import builder
from parity.errors import DeviceEnded, DeviceFailed, Inconclusive, UsageError
from parity.gates import boundary, run_gate
from parity.gates.context import GateContext
from tests.sample import WHOLE, by_night, first
from tests.shallow import POSITIONS

ADMISSION, CONTENTS = 0, 1
FAULTS, OTHERS = "parity.device.faults:", "tests.gates.cache_faults:"


BREAKS = r"admitted though it breaks: 2 above, .*; .* 2 above admitted"


@pytest.fixture
def gate(shallow_golden, tmp_path, monkeypatch):
    """The boundary gate over a device; filling its own maximum is left to the clean ones."""

    def run(device: str, own: bool = False):
        if not own:
            monkeypatch.setattr("parity.gates.boundary.FILLABLE", 100)
        context = GateContext(shallow_golden, device, builder(device, shallow_golden), "float32", tmp_path)
        return run_gate(context, "boundary")

    return run


@pytest.mark.parametrize("device", ["numpy", pytest.param("parity.references.seam:load", marks=by_night)])
def test_clean_devices_pass(device, gate):
    result = gate(device)
    assert [check.verdict for check in result.checks] == ["pass", "pass", "not judged"], result
    assert "exactly at runs, 1 above refused" in result.checks[ADMISSION].evidence


@pytest.mark.parametrize(
    ("fault", "check", "shows"),
    first(
        [
            (FAULTS + "boundary_transient_slots", CONTENTS, r"2 above, .* verify raised UsageError"),
            (FAULTS + "boundary_padded_rows", CONTENTS, r"drafter\.\S+ row \d+ is .* off the never-speculated one"),
            (OTHERS + "refuses_what_fits", ADMISSION, r"1 below: refused though it fits"),
            (FAULTS + "commit_cache_short", CONTENTS, r"drafter\.\S+ row \d+ is .* off the never-speculated one"),
            (OTHERS + "refuses_too_late", CONTENTS, r"raised UsageError"),
        ],
        3,
    ),
)
def test_a_planted_fault_turns_its_check_red(fault, check, shows, gate):
    result = gate(fault)
    assert result.verdict == "fail"
    assert result.checks[check].verdict == "fail"
    assert re.search(shows, result.checks[check].evidence), [one.evidence for one in result.checks]
    if "boundary_transient_slots" in fault:
        assert result.checks[ADMISSION].verdict == "fail" and re.search(BREAKS, result.checks[ADMISSION].evidence)
    admission = result.checks[ADMISSION]
    assert admission.verdict == "fail" or not re.search("wrong|breaks", admission.evidence), admission


def test_a_device_that_refuses_what_its_own_caches_hold_fails(gate):
    result, most = gate("tests.gates.cache_faults:refuses_what_fits", own=True), 512 if WHOLE else POSITIONS
    assert (result.checks[-1].name, result.checks[-1].verdict) == (f"own maximum, {most} positions", "fail")


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (UsageError("48 positions are too many"), "fail"),
        (DeviceFailed("numpy", "prefill", "IndexError: 3", refuses=False), "fail"),
        (Inconclusive("hands over no kv.target.0.k"), "inconclusive"),
        (DeviceEnded("numpy", "prefill", "ended its process"), "inconclusive"),
    ],
)
def test_what_is_no_refusal_is_not_taken_for_one(error, verdict, monkeypatch):
    """The device's own maximum: filling it fails in a way that says nothing of its caches."""

    class Ends:
        def __init__(self, *_):
            pass

        def compute(self):
            raise error

    says = SimpleNamespace(describe=lambda: SimpleNamespace(max_positions=48, k=4))
    case = SimpleNamespace(prompts=[SimpleNamespace(ids=(3, 5))], kv_cache="")
    golden = SimpleNamespace(folder="golden", manifest=SimpleNamespace(case=case))
    context = SimpleNamespace(device=lambda precision: says, golden=golden, precision="float32", command=str)
    monkeypatch.setattr("parity.gates.boundary.Baseline", Ends)
    monkeypatch.setattr("parity.gates.boundary.checks", lambda context: boundary._own(context, judged=True))
    result = run_gate(context, "boundary")
    assert result.verdict == verdict and str(error) in result.first.evidence, result


@by_night
@pytest.mark.usefixtures("few_histories")
def test_a_fault_at_the_end_does_not_show_far_from_it(shallow_golden, tmp_path):
    name = FAULTS + "boundary_padded_rows"
    context = GateContext(shallow_golden, name, builder(name, shallow_golden), "float32", tmp_path, histories=1)
    assert [check.name for check in run_gate(context, "rollback").checks if check.verdict == "fail"] == []


@by_night
def test_a_factory_without_max_positions_is_filled_to_its_own(shallow_golden, tmp_path):
    name = "parity.device.variants:unpadded"
    context = GateContext(shallow_golden, name, builder(name, shallow_golden), "float32", tmp_path)
    verdicts = [(check.name, check.verdict) for check in run_gate(context, "boundary").checks]
    assert verdicts[0] == ("admission", "not judged")
    assert [verdict for _, verdict in verdicts[1:]] == ["pass", "pass"]
