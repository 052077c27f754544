"""What a diagnosis says where no stage is red: as much as `parity gate` would, and no more."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from parity.api import diagnose_device
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS
from parity.diagnose.clock import TimeIsUp
from parity.diagnose.gates import ORDER, gates_not_asked, run_until_failure
from parity.gates.gate import Check, GateResult

LACKS = "the device has no `poison(value)`"


@pytest.fixture
def gates(monkeypatch):
    """No stage is red; every gate passes, but for what `others` say of it."""

    def plant(**others: str) -> None:
        def run_gate(context, name):
            return GateResult(name, (Check("first", PASS, "seen"), Check("second", others.get(name, PASS), LACKS)))

        monkeypatch.setattr("parity.diagnose.whole.find_failing_run", lambda *_: None)
        monkeypatch.setattr("parity.diagnose.gates.run_gate", run_gate)

    return plant


def test_a_gate_that_lacks_something_is_no_clean_device(gates, parity, shallow_golden):
    gates(rollback=INCONCLUSIVE, verify=INCONCLUSIVE)
    found = parity("diagnose", "--limit", "0", "--device", "numpy", "--golden", shallow_golden.folder)
    assert found.code == 3 and "nothing to diagnose" not in found.out, found
    assert (
        f"gate rollback, second: {LACKS}" in found.out
        and "gate verify, second" in found.out
        and "first" not in found.out
    ), found
    assert found.last.startswith("diagnosis: inconclusive")


@pytest.mark.parametrize(("verdict", "code"), [(PASS, 0), (NOT_JUDGED, 0), (FAIL, 1)])
def test_what_is_not_judged_beside_a_pass_is_a_pass_as_in_parity_gate(verdict, code, gates, parity, shallow_golden):
    gates(boundary=verdict, verify=INCONCLUSIVE if code else PASS)
    found = parity("diagnose", "--limit", "0", "--device", "numpy", "--golden", shallow_golden.folder)
    assert found.code == code and found.out.startswith("nothing to diagnose") == (not code), found


def test_each_gate_is_told_before_it_is_asked(gates, shallow_golden, monkeypatch):
    gates()
    told: list[str] = []
    diagnose_device(shallow_golden, "numpy", limit=None, progress=lambda done, total, name: told.append(name))
    assert [name for name in told if name.startswith("gate ")] == [
        "gate provenance",
        *(f"gate {name}" for name in ORDER),
    ]


def test_gates_end_where_the_time_is_up_and_no_gate_takes_that_for_the_devices_error(monkeypatch):
    """A gate takes what the device raises for a failure of its own."""
    asked, ended = [], []

    def up():
        if len(asked) == 2:
            raise TimeIsUp

    def run_gate(context, name):
        asked.append(name)
        try:
            context.progress(1, 9, name)
        except Exception as error:  # as gates do
            ended.append(error)
        return GateResult(name, (Check("first", FAIL if ended else PASS, "seen"),))

    monkeypatch.setattr("parity.diagnose.gates.run_gate", run_gate)
    told = []
    context = SimpleNamespace(
        progress=lambda *of: told.append(of),
        device_name="numpy",
        precision="bfloat16",
        golden=SimpleNamespace(folder="g"),
    )
    before = context.progress
    report = run_until_failure(context, ORDER, up)
    assert [result.gate for result in report.results] == list(ORDER[:1]) and asked == list(ORDER[:2]) and not ended
    assert gates_not_asked(report) == (f"gates were not asked, or not to their end: {', '.join(ORDER[1:])}",)
    whole = replace(report, results=tuple(GateResult(name, ()) for name in ORDER))
    assert gates_not_asked(whole) == ()
    assert context.progress is before and len(told) == 3 and report.verdict != FAIL
