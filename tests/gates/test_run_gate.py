"""What a gate found stays found, whatever breaks down behind it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.compare.report import FAIL, PASS
from parity.errors import DeviceEnded, Inconclusive
from parity.gates import run_gate
from parity.gates.evidence import Check

BENCH = SimpleNamespace(golden=SimpleNamespace(folder="golden"), device_name="numpy", precision="bfloat16")


@pytest.mark.parametrize("error", [Inconclusive("no rows"), DeviceEnded("numpy", "verify", "ended"), IndexError("row 3")])
@pytest.mark.parametrize("first", [FAIL, PASS])
def test_a_check_that_breaks_down_takes_none_with_it_that_was_made_before(first, error, monkeypatch):
    def checks(bench):
        yield Check("first", first, "seen")
        raise error

    monkeypatch.setattr("parity.gates.verify.checks", checks)
    found = run_gate(BENCH, "verify")
    assert [check.verdict for check in found.checks] == [first, "inconclusive"]
    assert found.verdict == (FAIL if first == FAIL else "inconclusive") and found.checks[1].evidence
