"""`parity faults list` and `parity faults run`."""

from __future__ import annotations

import json
from dataclasses import replace

from parity.device.faults import CATALOGUE, CONDITIONAL


def test_list_names_every_fault_and_what_is_not_planted(parity, tmp_path):
    found = parity("faults", "list", "--json", tmp_path / "faults.json")
    assert found.code == 0 and all(name in found.out for name in (*CATALOGUE, "commit-window-ring"))
    listed = json.loads((tmp_path / "faults.json").read_text())
    assert [one["id"] for one in listed] == [*CATALOGUE, *CONDITIONAL]
    assert listed[0]["stage"] == "target.layers.0.ffn_out"


def test_run_says_killed_and_where(parity, small_golden, tmp_path):
    found = parity("faults", "run", "tap-off-by-one", "--golden", small_golden.folder, "--json", tmp_path / "out.json")
    assert found.code == 0, found
    assert found.out.startswith("killed    tap-off-by-one") and "local drafter.taps r0" in found.out
    assert "text same" in found.out and found.last.startswith("1 of 1 faults killed, 1 of 1 placed")
    (outcome,) = json.loads((tmp_path / "out.json").read_text())
    assert outcome["killed"] and outcome["placed"] and outcome["comparisons"]["chained"]["inherited"] > 10


def test_a_survivor_ends_with_one(parity, shallow_golden, monkeypatch):
    from parity.device.faults import CATALOGUE

    harmless = replace(CATALOGUE["tap-early"], plant=lambda device: None)
    monkeypatch.setitem(CATALOGUE, "tap-early", harmless)
    found = parity("faults", "run", "tap-early", "--golden", shallow_golden.folder)
    assert found.code == 1 and found.out.startswith("SURVIVED") and "look at tap-early" in found.last


def test_wrong_usage_is_one_sentence(parity, shallow_golden):
    for arguments in (("run",), ("run", "--all", "tap-early"), ("run", "--all", "--conditional")):
        assert parity("faults", *arguments).code == 2
    found = parity("faults", "run", "tap-early where head = 3", "--golden", shallow_golden.folder)
    assert found.code == 2 and "'head = 3' is no NAME" in found.err
    found = parity("faults", "run", "no-such-fault", "--golden", shallow_golden.folder)
    assert found.code == 2 and "no-such-fault: no such fault" in found.err


def test_a_fault_is_a_device_for_every_command(parity, shallow_golden):
    found = parity(
        "diff",
        "--golden",
        shallow_golden.folder,
        "--device",
        "parity.device.faults:d2t_absolute",
        "--stage",
        "draft_tokens",
    )
    assert found.code == 1 and "first divergent: drafter.draft_tokens" in found.last
