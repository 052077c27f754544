"""Triangulation: who confirms whom, and who is blamed for a bug that was planted in a reference."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from parity.cli import cli
from parity.golden.reading import read_manifest
from parity.golden.store import Dump
from parity.golden.verify import write_prompts
from parity.references import dump
from parity.references.hypotheses import taps
from tests.golden.edits import rewrite
from tests.sample import by_night

ROOT = Path(__file__).parents[2]
VLLM = ROOT / "fixtures" / "vllm" / "p-eagle-k3-b2"
TAPS = "drafter.taps"


@pytest.fixture(autouse=True)
def here(monkeypatch) -> None:
    """The recordings name the tiny pair's checkpoints relative to the repository."""
    monkeypatch.chdir(ROOT)


def dumped(remake_small_golden, folder: Path) -> Dump:
    """Our references on the recording's case."""
    vllm = Dump(VLLM)
    case, prompts = vllm.manifest.case, write_prompts(vllm, folder / "prompts.jsonl")
    return remake_small_golden(folder / "golden", prompts=prompts, k=case.k, max_new_tokens=case.max_new_tokens)


@pytest.fixture(scope="module")
def clean(remake_small_golden, tmp_path_factory) -> Dump:
    return dumped(remake_small_golden, tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="module")
def mutated(remake_small_golden, tmp_path_factory) -> Dump:
    """The references with their taps one layer late."""
    made = dump.load_loop

    def broken(*pair):
        loop = made(*pair)
        stack.enter_context(taps.shifted(loop, 1))
        return loop

    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(dump, "load_loop", broken)
        return dumped(remake_small_golden, tmp_path_factory.mktemp("mutated"))


@pytest.fixture
def copied(tmp_path):
    """A copy of a golden, to be marked; under another producer's name where one is given."""

    def copy(golden: Dump, name: str, producer: str = "") -> Path:
        folder = Path(shutil.copytree(golden.folder, tmp_path / name))
        if producer:
            made = {"name": producer, "modules": [f"{producer}.model"], "sources": {}, "source_digest": "0" * 64}
            rewrite(folder, lambda raw: raw["producer"].update(made))
        return folder

    return copy


def marks(folder: Path):
    return read_manifest(folder).corroborations


def test_vllm_confirms_our_references(parity, clean, copied, tmp_path):
    ours = copied(clean, "ours")
    found = parity("corroborate", ours, VLLM, "--json", tmp_path / "found.json")
    assert found.code == 0 and "references verdict: corroborated" in found.last, found.out
    result = json.loads((tmp_path / "found.json").read_text())
    shared = set(Dump(VLLM).manifest.stages)
    assert {name for name, one in result["stages"].items() if one["verdict"] == "corroborated"} == shared
    (mark,) = marks(ours)
    assert (mark.witness, set(mark.stages), mark.disputed, mark.prompts) == ("vllm", shared, (), 2)
    assert mark.versions["vllm"].startswith("0.32.")


def test_a_corroborated_golden_says_so_in_a_comparison(parity, clean, copied, tmp_path):
    ours = copied(clean, "ours")
    parity("corroborate", ours, VLLM)
    found = parity("diff", "--golden", ours, "--json", tmp_path / "diff.json")
    assert found.code == 0 and "vllm 0.32.0 confirms" in found.out, found.out
    by_name = {stage["stage"]: stage for stage in json.loads((tmp_path / "diff.json").read_text())["stages"]}
    assert "corroborated" in by_name[TAPS]["marks"] and "corroborated" not in by_name["kv.drafter.0.k"]["marks"]


def test_a_planted_reference_bug_is_a_dispute_of_the_references(parity, mutated, copied, tmp_path):
    ours = copied(mutated, "ours")
    found = parity("corroborate", ours, VLLM)
    assert found.code == 1 and "references verdict: disputed" in found.last, found.out
    assert f"they first part at {TAPS}, prompt 0, round 0" in found.last
    assert "references: hf_target + peagle and vllm 0.32.0 disagree" in found.last
    assert "none of them is trusted here, a third reference would decide" in found.last
    (mark,) = marks(ours)
    assert TAPS in mark.disputed and "drafter.input_ids" in mark.stages and "target.layers.3.experts" in mark.stages


@pytest.fixture(scope="module")
def disputed(mutated, tmp_path_factory) -> Path:
    """The wrong golden, marked by what vLLM disputes; read only."""
    folder = Path(shutil.copytree(mutated.folder, tmp_path_factory.mktemp("disputed") / "ours"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert CliRunner().invoke(cli, ["corroborate", str(folder), str(VLLM)]).exit_code == 1
    return folder


def test_a_clean_device_does_not_fail_for_a_disputed_golden(parity, mutated, disputed, tmp_path):
    # Before anybody asked a second reference, it is the device's.
    assert parity("diff", "--golden", mutated.folder, "--stage", "taps").code == 1
    ours = disputed
    found = parity("diff", "--golden", ours, "--json", tmp_path / "diff.json")
    assert found.code == 3 and "chained verdict: disputed" in found.last, found.out
    result = json.loads((tmp_path / "diff.json").read_text())
    verdicts = {stage["stage"]: stage["verdict"] for stage in result["stages"]}
    assert verdicts[TAPS] == verdicts["kv.drafter.1.k"] == "disputed" and verdicts["target.logits"] == "pass"
    assert result["first"] is None and result["findings"] == []


def test_a_device_still_fails_where_the_references_agree(parity, disputed):
    found = parity("diff", "--golden", disputed, "--device", "parity.device.faults:attn_sinks_missing")
    assert found.code == 1 and "first divergent: target." in found.last, found.out


def test_a_third_reference_outvotes_the_wrong_one(parity, mutated, clean, copied):
    third, ours = copied(clean, "third", producer="third"), copied(mutated, "ours")
    found = parity("corroborate", ours, VLLM, third)
    assert found.code == 1 and "references verdict: outvoted" in found.last, found.out
    assert "vllm 0.32.0 and third confirm each other: references: hf_target + peagle is wrong" in found.last
    assert all(TAPS in mark.disputed for mark in marks(ours))
    found = parity("corroborate", third, VLLM, ours)
    assert found.code == 1 and "outvoted" in found.last
    of_vllm, of_ours = marks(third)
    assert TAPS in of_vllm.stages and of_ours.disputed == ()
    assert parity("diff", "--golden", third).code == 0


def test_two_dumps_of_one_reference_are_one_opinion(parity, clean, copied):
    found = parity("corroborate", copied(clean, "ours"), copied(clean, "again"))
    assert found.code == 3 and "are one opinion: both are made of" in found.out, found.out


def test_a_copy_under_another_name_confirms_nothing(parity, clean, copied):
    ours = copied(clean, "ours")
    found = parity("corroborate", ours, copied(clean, "copy", producer="copyist"))
    assert found.code == 3 and "the same bit for bit" in found.out, found.out
    assert marks(ours)[0].stages == ()


def longer(raw):
    """A budget that nothing contradicts: every prompt ended before it."""
    raw["case"]["max_new_tokens"] += 1
    for prompt in raw["case"]["prompts"]:
        prompt["generation"]["finish"] = "eos"


def run(raw):
    raw.update(kind="run", tensors=[row for row in raw["tensors"] if row["variant"] == "float32"])
    raw["case"].update(mode="chained")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (longer, "another K, token budget, partial KV or format of caches"),
        (run, "a golden comes from a reference only"),
        (lambda raw: [one["ids"].__setitem__(0, 3) for one in raw["case"]["prompts"]], "no prompt in common"),
        (lambda raw: raw["model"]["drafter"].update(weights_digest="0" * 64), "is stale"),
    ],
)
def test_what_cannot_be_compared_is_refused(change, sentence, parity, clean, copied):
    other = copied(clean, "other", producer="other")
    rewrite(other, change)
    found = parity("corroborate", copied(clean, "ours"), other)
    assert found.code == 2 and sentence in found.err, found.err


def test_one_golden_is_one_opinion(parity, clean):
    assert parity("corroborate", clean.folder).code == 2


@by_night
def test_the_stages_gate_does_not_pass_over_a_disputed_golden(parity, disputed):
    found = parity("gate", "--golden", disputed, "--only", "stages")
    assert found.code == 3 and "the references themselves disagree" in found.out, found.out
