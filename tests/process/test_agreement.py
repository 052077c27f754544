"""What is asked for, what a device describes and what a run holds agree, or the command ends with a sentence."""

from __future__ import annotations

import pytest

from parity.api import run_device
from parity.errors import UsageError
from parity.golden.trust import trusted
from parity.nightly.cell import judge_cell
from parity.nightly.records import Cell, CellAxes

HOSTILE = "tests.faults.hostile"


@pytest.mark.parametrize("command", ["run", "diff", "calibrate", "diagnose", "reduce", "engines"])
def test_a_device_in_another_precision_than_asked_for_is_refused(command, parity, shallow_golden):
    found = parity(
        command, "--golden", shallow_golden.folder, "--precision", "float32", "--device", f"{HOSTILE}:always_bfloat16"
    )
    *before, said = found.err.splitlines()
    assert found.code == 2 and "asked for precision float32" in said, found
    assert all("on one idle core" in line for line in before), found


def test_a_bench_of_another_precision_than_asked_for_is_refused(parity, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"id": "one", "ids": [3, 4]}')
    device = ("--device", f"{HOSTILE}:always_bfloat16", "--precision", "float32")
    found = parity("bench", *device, "--prompts", tmp_path / "prompts.jsonl", "--repeats", 1)
    assert found.code == 2 and "asked for precision float32" in found.err and not found.out, found


def test_the_contract_names_another_precision_than_asked_for(parity):
    found = parity("check-device", "--device", f"{HOSTILE}:always_bfloat16", "--precision", "float32")
    assert found.code == 1 and "bfloat16" in found.out, found


@pytest.mark.parametrize("kind", ["judged", "bench"])
def test_a_night_s_cell_of_another_precision_than_asked_for_is_refused(kind, shallow_golden, tmp_path):
    case, model = shallow_golden.manifest.case, shallow_golden.manifest.model
    cell = Cell(
        axes=CellAxes(case="chat", device="other", family="peagle", k=case.k, tp=1, policy="float32"),
        target=model.target.path,
        drafter=model.drafter.path,
        prompts="prompts.jsonl",
        max_new_tokens=2,
        golden=str(shallow_golden.folder),
        device=f"{HOSTILE}:always_bfloat16",
        precision="float32",
        kind=kind,
        gates=("stages",) if kind == "judged" else (),
        diagnose=False,
    )
    with pytest.raises(UsageError, match="asked for precision float32"):
        judge_cell("night", cell, trusted(shallow_golden), tmp_path)


def test_a_device_of_another_k_than_asked_for_is_refused(parity, shallow_golden):
    found = parity("diff", "--golden", shallow_golden.folder, "--device", f"{HOSTILE}:fixed_k")
    assert found.code == 2 and "asked for K 4" in found.err, found


def test_a_gate_that_needs_the_other_precision_is_inconclusive_without_it(parity, shallow_golden):
    found = parity(
        "gate", "--golden", shallow_golden.folder, "--only", "verify", "--device", f"{HOSTILE}:always_bfloat16"
    )
    assert found.code == 3 and "does not offer float32" in found.out, found


@pytest.fixture(scope="module")
def run(shallow_golden, tmp_path_factory):
    """A bfloat16 run that says float32: wrong by float32's bounds, within bfloat16's."""
    from parity.golden.store import Dump

    folder = tmp_path_factory.mktemp("run") / "run"
    made = run_device(shallow_golden, "numpy", "chained", out=folder, free=False)
    says = made.manifest.case.model_copy(update={"precision": "float32"})
    made.manifest.model_copy(update={"case": says}).replace(folder)
    return Dump(folder)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("diff", ("--precision", "bfloat16")),
        ("diff", ("--mode", "local")),
        ("diff", ("--device", "xla")),
        ("diagnose", ("--precision", "bfloat16")),
        ("diagnose", ("--device", "xla")),
    ],
)
def test_an_option_that_contradicts_a_run_is_wrong_usage(command, options, parity, shallow_golden, run):
    found = parity(command, run.folder, "--golden", shallow_golden.folder, *options)
    assert found.code == 2 and options[0] in found.err and found.err.count("\n") == 1, found


def test_a_gate_judges_a_run_by_its_own_precision(parity, shallow_golden, run):
    arguments = ("gate", "--golden", shallow_golden.folder, "--only", "stages", "--run", run.folder)
    assert parity(*arguments, "--precision", "bfloat16").code == 2
    found = parity(*arguments)
    assert "float32" in found.out and "fail" in found.last, found
