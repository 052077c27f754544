"""Reading a comparison: whose error it is, and where inside a stage it sits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from parity.builders import builder
from parity.compare import compare
from parity.compare.places import mark
from parity.compare.report import StageResult
from parity.drive import run_device
from parity.golden.store import Dump
from parity.golden.trust import trusted
from parity.golden.views import GoldenSlice
from parity.oracles import ReferenceRerun
from parity.policy import read_policy
from parity.run_request import RunRequest
from parity.stages import declared, inputs

FAULT = "parity.device.faults:attn_window_missing_once"


def test_every_input_of_the_table_is_a_stage_of_the_table():
    names = declared(3, 2)
    for named in names.values():
        missing = [one for one in named.stage.inputs if not inputs(named, names)]
        assert not missing or named.layer == 0, f"{named.name} is computed from {missing}, which nobody makes"


@pytest.fixture
def marks(shallow_golden, tmp_path):
    """Marks by stage of a chained comparison: one prompt, two rounds."""

    def run(device: str, whole: Dump = shallow_golden) -> dict[str, tuple[str, ...]]:
        golden = GoldenSlice(trusted(whole), 0, 2)
        made = builder(device, golden)(precision="bfloat16")
        seen = Dump(run_device(RunRequest(made, golden, "chained", (), tmp_path / "run", free=False)))
        report = compare(golden, seen, read_policy(None, "bfloat16"), rerun=ReferenceRerun())
        return {stage.stage: stage.marks for stage in report.stages}

    return run


def test_only_the_guilty_stage_has_an_error_of_its_own_before_the_next_layer(marks, small_golden):
    found = marks(FAULT, small_golden)
    assert found["target.layers.4.attn_out"] == ("own", "step")
    assert found["target.layers.4.q"] == ()
    assert found["target.layers.5.attn_in"] == ("inherited",)
    assert [name for name, mark in found.items() if "own" in mark] == ["target.layers.4.attn_out"]


def test_a_choice_made_from_wrong_scores_is_theirs(marks):
    found = marks("parity.device.faults:load_tied_head")
    assert found["target.tokens"] == found["verify.tokens"] == ("inherited",)
    assert found["target.logits"][0] == "own"


def test_a_choice_that_is_wrong_by_itself_is_its_own(marks):
    found = marks("parity.device.faults:ffn_topk_lowest")
    assert found["target.layers.0.experts"][0] == "own" and found["target.layers.0.router_logits"] == ()


def test_a_choice_that_is_the_best_of_scores_within_their_bounds_is_theirs(shallow_golden):
    """One column is off by less than a row's bound, and wins."""

    def result(name, verdict="pass", **more):
        return StageResult(name, name, None, "noise", verdict, "", 4, **more)

    wrong = result("drafter.draft_tokens", "fail", choices={"same": 3, "bug": 1})
    right, golden = result("drafter.logits"), trusted(shallow_golden)
    assert mark([right, wrong], golden, "chained")[1].marks == ("scores", "spike")
    assert mark([wrong], golden, "chained")[0].marks[0] == "own"  # nobody shows the scores
    against = replace(wrong, against_scores=1)
    assert mark([right, against], golden, "chained")[1].marks[0] == "own"
    assert mark([right, wrong], golden, "local")[1].marks == ("own",)


def test_an_error_that_passes_unseen_and_shows_again_accuses_nobody(marks, small_golden):
    found = marks("parity.device.faults:attn_o_bias_dropped", small_golden)
    assert [name for name, mark in found.items() if "own" in mark] == ["target.layers.3.attn_out"]


def test_a_clean_device_is_neither_guilty_nor_over_precise(marks):
    assert set(marks("numpy").values()) == {()}


def test_a_device_that_hands_back_float32_is_over_precise(marks):
    assert "over-precise" in marks("tests.faults.broken:float32_in_disguise")["target.layers.1.ffn_out"]


@pytest.mark.parametrize("per", ["position", "head", "expert"])
def test_a_stage_breaks_down_by_label(per, parity, shallow_golden):
    stage = {"position": "target.logits", "head": "target.layers.1.q", "expert": "target.layers.1.ffn_out"}[per]
    found = parity("diff", "--golden", shallow_golden.folder, "--stage", stage, "--per", per, "--worst", 3)
    assert found.code == 0, found
    assert f"worst by {per}" in found.out and found.out.count(f"\n{stage} ") == 3


def test_the_broken_window_shows_past_the_window_only(parity, small_golden, tmp_path):
    file = tmp_path / "diff.json"
    options = ("--device", FAULT, "--mode", "local", "--per", "position", "--worst", 1000, "--json", file)
    parity("diff", "--golden", small_golden.folder, *options)
    slices = json.loads(file.read_text())["slices"]["target.layers.4.attn_out"]
    assert all((one["x"] > 3) == (one["label"] >= 32) for one in slices if not 32 <= one["label"] < 36)


def test_a_stage_without_heads_says_so(parity, shallow_golden):
    found = parity("diff", "--golden", shallow_golden.folder, "--stage", "target.logits", "--per", "head")
    assert found.code == 2 and "--per head" in found.err
