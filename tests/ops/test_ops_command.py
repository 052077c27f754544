"""`parity ops`: verdict, exit code, and the operation by name."""

from __future__ import annotations

import json

import pytest


def test_a_right_device_passes(ops, tmp_path):
    found = ops("--json", tmp_path / "ops.json")
    assert found.exit_code == 0 and found.stdout.splitlines()[-1] == "ops verdict: pass"
    said = json.loads((tmp_path / "ops.json").read_text())
    assert {one["verdict"] for one in said["results"]} == {"pass"} and said["results"][0]["results"]


def test_a_miscompiled_choice_is_named_and_reproduced_by_the_last_line(ops):
    found = ops("--device", "tests.ops.miscompiled:load")
    last = found.stdout.splitlines()[-1]
    assert found.exit_code == 1 and "ops verdict: fail; 2 of" in last and "first where(bool[" in last
    again = ops("--device", "tests.ops.miscompiled:load", "--op", last.rsplit("--op ", 1)[1].strip("'"))
    assert again.exit_code == 1 and "1 of 1 operations" in again.stdout.splitlines()[-1]
    assert ops("--device", "tests.ops.miscompiled:load", "--op", "t*").exit_code == 0


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--limit", 9), 3, "--limit 9"),
        (("--op", "nonsense"), 2, "--op nonsense: no operation of this run"),
        (("--device", "tests.gates.choice_faults:deaf"), 3, "has no function operate"),
    ],
)
def test_what_cannot_be_tried(more, code, said, ops):
    found = ops(*more)
    assert getattr(found.exception, "exit_code", found.exit_code) == code or found.exit_code == code
    assert said in found.output or said in str(found.exception)


def test_list_runs_nothing(ops):
    found = ops("--list", "--device", "tests.gates.choice_faults:deaf")
    assert found.exit_code == 0 and "matrix multiplications: parity shapes" in found.stdout
    assert any(line.startswith("setitem(bfloat16[") and line.endswith(" draft") for line in found.stdout.splitlines())
