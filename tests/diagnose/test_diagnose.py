"""`parity diagnose`: the defect by its name, or what its error looks like."""

from __future__ import annotations

import json

import pytest

from parity import producers
from parity.api import diagnose_device, run_device
from parity.diagnose import whole
from tests.sample import WHOLE, by_night, cut
from tests.shallow import cut_pair

CASES = {
    "attn_window_missing": "attn-window-missing",
    "attn_sinks_missing_once": "attn-sinks-missing",
    "rope_theta_llama": "rope-theta",
    "tap_off_by_one": "tap-off-by-one",
    "input_position_plus_one": "input-position-plus-one",
    "d2t_missing": "d2t-missing",
}
FIRST = ("d2t_missing",)
"""What the drafter alone has; the others by `make catalogue`."""


@pytest.fixture(scope="module")
def golden(tiny, remake_small_golden, tmp_path_factory):
    """One prompt and a pair of two layers; by night the small golden's."""
    folder = tmp_path_factory.mktemp("diagnosed")
    lines = (tiny / "prompts/chat.jsonl").read_text().splitlines()[: 2 if WHOLE else 1]
    (folder / "prompts.jsonl").write_text("\n".join(lines if WHOLE else map(cut, lines)))
    asked = {} if WHOLE else dict(max_new_tokens=6, **cut_pair(tiny, folder))
    return remake_small_golden(folder / "golden", prompts=folder / "prompts.jsonl", **asked)


@pytest.fixture
def diagnose(parity, golden, tmp_path):
    """`parity diagnose ARGUMENTS` over the golden: how it ended, and its JSON."""

    def run(*arguments: object):
        file = tmp_path / "diagnosis.json"
        ended = parity("diagnose", "--limit", "0", "--golden", golden.folder, *arguments, "--json", file)
        return ended, json.loads(file.read_text()) if file.exists() else None

    return run


TAPS = "tap-off-by-one" if WHOLE else "tap-order"
"""A defect of taps that the pair has a layer for."""

REJECTING = "types-127-131"
"""A prompt with rounds that reject drafts, and rounds that accept all."""


def only(hypothesis: str):
    """The references with one hypothesis of the catalogue."""

    def counterfactuals(golden, threads):
        reference, hypotheses = producers.counterfactuals(golden, threads)
        return reference, [each for each in hypotheses if each.id == hypothesis]

    return counterfactuals


@pytest.mark.parametrize("fault", CASES if WHOLE else FIRST)
def test_a_planted_fault_is_named_and_brings_its_stage_back_to_the_floor(fault, diagnose):
    ended, found = diagnose("--device", f"parity.device.faults:{fault}")
    assert ended.code == 1, ended
    first = found["causes"][0]
    assert first["hypothesis"] == CASES[fault], ended.out
    assert first["explained"] > 0.99 and first["after"]["settled"] and first["fix"] and found["unexplained"] is None
    assert ended.last.startswith("diagnosis: ") and CASES[fault] in ended.last


def test_a_run_folder_is_enough(diagnose, golden, tmp_path, monkeypatch):
    if not WHOLE:  # the search through all of them is asked above
        monkeypatch.setattr(whole, "counterfactuals", only(TAPS))
    made = run_device(golden, f"parity.device.faults:{TAPS.replace('-', '_')}", "chained", out=tmp_path / "run")
    ended, found = diagnose(made.folder)
    assert ended.code == 1 and found["causes"][0]["hypothesis"] == TAPS, ended
    assert found["mode"] == "chained"


def test_a_search_that_is_cut_short_says_so_and_is_inconclusive(diagnose):
    ended, found = diagnose("--device", f"parity.device.faults:{TAPS.replace('-', '_')}", "--limit", "0.001")
    assert ended.code == 3 and found["causes"] == [] and found["untried"], ended
    assert found["verdict"] == "fail" and found["unexplained"]["stage"] == "drafter.taps"
    assert "cut short by --limit" in ended.out and ended.last.endswith("the search was cut short")


@by_night
def test_a_cause_in_a_hidden_stage_is_confirmed_where_some_of_its_rows_are_not_determined(
    tiny, remake_small_golden, tmp_path, monkeypatch
):
    """The first masked row takes the row behind the committed ones, which a round that accepts everything lacks."""
    lines = (json.loads(line) for line in (tiny / "prompts/chat.jsonl").read_text().splitlines())
    rejecting = next(line for line in lines if line["id"] == REJECTING)
    (tmp_path / "prompts.jsonl").write_text(json.dumps(rejecting))
    golden = remake_small_golden(tmp_path / "golden", prompts=tmp_path / "prompts.jsonl")
    monkeypatch.setattr(whole, "counterfactuals", only("fuse-border"))
    found = diagnose_device(golden, "parity.device.faults:fuse_mask_one_late,show=layer-kernels")
    assert [cause.hypothesis for cause in found.causes] == ["fuse-border"] and found.unexplained is None


@by_night
def test_two_faults_at_one_stage_are_a_pair(diagnose):
    ended, found = diagnose("--device", "tests.diagnose.devices:two_at_one_stage")
    assert {cause["hypothesis"] for cause in found["causes"]} == {"attn-sinks-missing", "attn-window-missing"}, (
        ended.out
    )


@by_night
def test_an_error_that_no_hypothesis_explains_is_described(diagnose):
    ended, found = diagnose("--device", "tests.diagnose.devices:loud_head")
    assert ended.code == 1 and found["causes"] == [], ended.out
    assert found["unexplained"]["stage"] == "target.layers.2.q" and "only head 3" in found["signature"]
    assert "no hypothesis fits" in ended.last


def test_a_clean_run_has_nothing_to_diagnose(diagnose, golden, tmp_path):
    ended, _ = diagnose(run_device(golden, "numpy", "chained", out=tmp_path / "run").folder)
    assert ended.code == 0 and ended.last.startswith("nothing to diagnose"), ended


def test_a_fault_that_only_a_gate_sees_is_read_from_its_evidence(diagnose):
    ended, found = diagnose("--device", "parity.device.faults:oracle_shared_bug")
    assert ended.code == 1 and found[0]["id"] == "oracle-shared-bug", ended


@pytest.mark.skipif(
    not WHOLE, reason="four faults, each tried with every hypothesis: `make catalogue` takes the minutes"
)
def test_the_case_this_began_with_is_peeled_off_in_the_order_in_which_it_shows(diagnose):
    """Raw prompt, taps one layer late, a drafter blind to its context and a rollback on the head axis, together."""
    ended, found = diagnose("--device", "tests.diagnose.seed:four")
    named = [cause["hypothesis"] for cause in found["causes"]]
    assert named == ["input-raw-prompt", "tap-off-by-one", "input-context-blind", "rollback-head-axis-drafter"], (
        ended.out
    )
    assert found["unexplained"] is None and found["causes"][-1]["remaining"] == 0
    assert "in_of[l] is out_of[l - 1]" in ended.out
