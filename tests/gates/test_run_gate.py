"""What a gate found stays found, whatever breaks down behind it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.builders import builder
from parity.compare.report import FAIL, PASS
from parity.errors import DeviceEnded, Inconclusive, UsageError
from parity.gates import run_gate
from parity.gates.context import GateContext
from parity.gates.gate import Check

BENCH = SimpleNamespace(device_name="numpy", command=lambda gate: f"parity gate --only {gate}")


@pytest.mark.parametrize(
    "error", [Inconclusive("no rows"), DeviceEnded("numpy", "verify", "ended"), IndexError("row 3")]
)
@pytest.mark.parametrize("first", [FAIL, PASS])
def test_a_check_that_breaks_down_takes_none_with_it_that_was_made_before(first, error, monkeypatch):
    def checks(context):
        yield Check("first", first, "seen")
        raise error

    monkeypatch.setattr("parity.gates.verify.checks", checks)
    found = run_gate(BENCH, "verify")
    assert [check.verdict for check in found.checks] == [first, "inconclusive"]
    assert found.verdict == (FAIL if first == FAIL else "inconclusive") and found.checks[1].evidence


@pytest.mark.parametrize(
    ("names", "code"), [(["help"], 0), (["stages", "help"], 2), (["help", "help"], 2), (["stagse"], 2)]
)
def test_help_among_gates_is_no_gate_and_no_pass(names, code, parity, shallow_golden, monkeypatch):
    monkeypatch.setattr("parity.gates.run_gates", lambda *_, **__: pytest.fail("a gate ran"))
    found = parity("gate", "--golden", shallow_golden.folder, *(word for name in names for word in ("--only", name)))
    assert found.code == code and (
        ("provenance" in found.out) if code == 0 else f"--only {names[-1]}: no such gate" in found.err
    ), found


def test_several_gates_in_one_name_are_told_how_they_are_asked_for(parity, shallow_golden, monkeypatch):
    monkeypatch.setattr("parity.gates.run_gates", lambda *_, **__: pytest.fail("a gate ran"))
    found = parity("gate", "--golden", shallow_golden.folder, "--only", "decisions,lossless")
    said = "--only decisions,lossless: --only is given once for each gate: --only decisions --only lossless"
    assert found.code == 2 and said in found.err, found


@pytest.mark.parametrize(
    ("name", "sources", "said"),
    [
        ("somebody's", {}, "run was made by somebody's, --device numpy is numpy"),
        ("numpy", {"parity.device.pipeline": "0" * 64}, r"run was made before parity\.device\.pipeline changed"),
    ],
)
def test_a_run_of_another_device_or_of_another_source_of_it_is_refused(name, sources, said, shallow_golden, tmp_path):
    producer = SimpleNamespace(name=name, sources=sources)
    run = SimpleNamespace(folder="run", command="run", manifest=SimpleNamespace(producer=producer))
    context = GateContext(shallow_golden, "numpy", builder("numpy", shallow_golden), "bfloat16", tmp_path, _given=[run])
    with pytest.raises(UsageError, match=said):
        context.device()
