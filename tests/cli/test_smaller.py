"""The commands of smaller goldens: dumped, run over, compared; refused by what reads whole tensors."""

from __future__ import annotations

import json

import pytest

from parity.golden.smaller import Smaller, smaller_golden
from parity.golden.store import Dump
from parity.golden.verify import verified


@pytest.fixture(scope="module")
def small(shallow_golden, tmp_path_factory):
    # 64 numbers leave the interval of the clean device's worst row, 2.1 x noise, on both sides of its bound
    return smaller_golden(shallow_golden, tmp_path_factory.mktemp("small") / "golden", Smaller(90))


@pytest.fixture(scope="module")
def sketched_run(shallow_golden, tmp_path_factory):
    from parity.api import run_device

    out = tmp_path_factory.mktemp("runs") / "run"
    return run_device(shallow_golden, "numpy", "local", out=out, sketch=90).folder


def test_a_run_of_sketches_is_compared_with_a_golden_of_sketches(parity, small, sketched_run, tmp_path):
    ended = parity("diff", sketched_run, "--golden", small, "--json", tmp_path / "report.json")
    assert ended.code == 3
    assert "--without" in ended.out
    ended = parity("diff", sketched_run, "--golden", small, "--without", "worst_column,largest,unlike")
    assert (ended.code, "by sketch of 90 numbers" in ended.out) == (0, True)
    report = json.loads((tmp_path / "report.json").read_text())
    told = {stage["evidence"] for stage in report["stages"]}
    assert told == {"whole", "sketch of 90 numbers"}


def test_a_chained_run_is_forced_by_a_golden_of_sketches(parity, small, tmp_path):
    assert parity("run", "--golden", small, "--sketch", 90, "--out", tmp_path / "run").code == 0
    assert Dump(tmp_path / "run").keeps
    assert parity("diff", tmp_path / "run", "--golden", small, "--without", "worst_column,largest").code == 0


@pytest.mark.parametrize(
    "command",
    [
        ("gate", "--quick"),
        ("diagnose",),
        ("run", "--mode", "local"),
        ("diff", "--mode", "local"),
        ("diff", "--per", "head"),
        ("calibrate",),
    ],
    ids=" ".join,
)
def test_what_reads_whole_tensors_refuses_in_a_sentence(command, parity, small):
    ended = parity(*command, "--golden", small)
    assert ended.code == 2
    assert ended.err.count("\n") <= 2
    assert "less than whole" in ended.err or "needs the whole tensor" in ended.err


@pytest.mark.parametrize("command", [("gate", "--run"), ("diagnose",), ("report",)], ids=" ".join)
def test_a_run_of_sketches_is_refused_likewise(command, parity, sketched_run, shallow_golden):
    ended = parity(*command, sketched_run, "--golden", shallow_golden.folder)
    assert (ended.code, "keeps some of its tensors as less than whole" in ended.err) == (2, True)


def test_what_is_kept_is_shown(parity, small):
    assert "a sketch of 90 numbers a row" in parity("inspect", small).out


def test_a_dump_with_the_options_is_a_whole_golden_made_smaller(shallow_golden, remake_small_golden, tmp_path):
    model = shallow_golden.manifest.model
    pair = {side: type(tmp_path)(getattr(model, side).path) for side in ("target", "drafter")}
    asked = dict(sketch=8, sketch_seed=3, logits="top:16", positions="0-4")
    tokens = shallow_golden.manifest.case.max_new_tokens
    again = remake_small_golden(tmp_path / "dumped", max_new_tokens=tokens, **asked, **pair)
    made = Dump(smaller_golden(shallow_golden, tmp_path / "made", Smaller(**asked)))
    assert verified(made, again).exit_code == 0
    assert Smaller.of(again.manifest.case) == Smaller(**asked)
