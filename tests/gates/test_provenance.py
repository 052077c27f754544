"""The provenance gate, and what refuses a golden: something behind it changed, or it is the device's own source."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest

from parity.builders import builder
from parity.errors import UsageError
from parity.gates import run_gate
from parity.gates.context import GateContext
from parity.gates.provenance import independent, real_acceptance, unchanged
from parity.golden.store import Dump
from parity.golden.trust import changes, refuse_stale
from tests.golden.edits import rewrite
from tests.sample import WHOLE, cover

ORACLE = "tests.gates.oracle_devices:wrapped"


@pytest.fixture
def golden(small_golden, tiny, tmp_path) -> Dump:
    """The small golden, dumped from a pair of checkpoints that may be spoiled."""
    folder = Path(shutil.copytree(small_golden.folder, tmp_path / "golden"))
    moved = {part: str(shutil.copytree(tiny / part, tmp_path / part)) for part in ("target", "drafter")}
    rewrite(folder, lambda raw: [raw["model"][part].update(path=path) for part, path in moved.items()])
    return Dump(folder)


def part(golden: Dump, side: str) -> Path:
    return Path(getattr(golden.manifest.model, side).path)


def edit(golden: Dump, **producer) -> Dump:
    """The golden with another record of who made it."""
    rewrite(golden.folder, lambda raw: raw["producer"].update(producer))
    return Dump(golden.folder)


def flip(path: Path, at: int = -1) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def context(golden: Dump, device: str = "numpy", folder: Path = Path("runs")) -> GateContext:
    return GateContext(golden, device, builder(device, golden), "float32", folder)


def test_an_untouched_golden_and_the_shipped_device_pass(small_golden):
    checks = run_gate(context(small_golden), "provenance").checks
    assert [check.verdict for check in checks] == ["pass", "pass", "pass"]
    assert (
        "parity.references.peagle" in checks[1].figures["golden"]
        and "parity.device.kernels.head" in checks[1].figures["device"]
    )
    assert "transformers.models.gpt_oss.modeling_gpt_oss" in small_golden.manifest.producer.sources


SPOILS = {
    "the target's tokenizer": ("target", "tokenizer.json"),
    "the target's chat template": ("target", "chat_template.jinja"),
    "the target's weights": ("target", "model-00002-of-00002.safetensors"),
    "the drafter's weights": ("drafter", "model.safetensors"),
    "the target's config": ("target", "generation_config.json"),
    "the drafter's config": ("drafter", "config.json"),
}


COMMANDS = ("run", "diff", "gate", "diagnose", "calibrate")


@pytest.mark.parametrize(("what", "command"), cover(product(SPOILS, COMMANDS)))
def test_one_changed_byte_is_named_by_the_gate_and_refused_by_every_command(what, command, golden, parity):
    side, file = SPOILS[what]
    made = context(golden)
    flip(part(golden, side) / file)
    check = unchanged(made)
    assert check.verdict == "fail" and what in check.evidence and "dump-golden" in check.evidence
    found = parity(command, "--golden", golden.folder)
    assert found.code == 2 and what in found.err and "dump-golden" in found.err, found


def test_a_stored_run_is_not_judged_by_a_stale_golden(golden, parity, tmp_path):
    run = tmp_path / "run"
    assert parity("run", "--golden", golden.folder, "--stage", "logits", "--out", run).code == 0
    flip(part(golden, "target") / "chat_template.jinja")
    for command in ("diff", "diagnose"):
        found = parity(command, run, "--golden", golden.folder)
        assert found.code == 2 and "chat template" in found.err


def test_a_reference_that_was_edited_since_makes_the_golden_stale(golden):
    sources = golden.manifest.producer.sources
    older = edit(golden, sources=sources | {"parity.references.rope": "0" * 64})
    with pytest.raises(UsageError, match=r"the source of parity\.references\.rope changed.*dump-golden"):
        refuse_stale(older)
    removed = edit(golden, sources=sources | {"parity.references.removed": "0" * 64})
    assert changes(removed).sources == ("the source of parity.references.removed",)


def test_references_that_are_not_installed_are_said_to_be_and_never_pass(golden, parity):
    made = context(golden)
    made.golden = edit(golden, sources={"elsewhere.maths": "0" * 64}, modules=["elsewhere.maths"])
    check = unchanged(made)
    assert check.verdict == "inconclusive" and "elsewhere.maths is not installed here" in check.evidence
    found = parity("run", "--golden", golden.folder, "--stage", "tokens")
    assert found.code == 0 and "elsewhere.maths is not installed here" in found.err


def test_a_golden_that_does_not_say_what_made_it_is_inconclusive(golden):
    made = context(golden)
    made.golden = edit(golden, sources={}, modules=[])
    assert (unchanged(made).verdict, independent(made).verdict) == ("inconclusive", "inconclusive")


def test_a_checkpoint_that_is_gone_is_said_to_be(golden):
    made = context(golden)
    shutil.rmtree(part(golden, "drafter"))
    check = unchanged(made)
    assert check.verdict == "inconclusive" and "no checkpoint here" in check.evidence
    with pytest.raises(UsageError, match=r"no config\.json"):
        context(golden)


def test_a_device_that_imports_the_references_is_red_although_it_declares_nothing(small_golden, parity):
    check = independent(context(small_golden, ORACLE))
    assert check.verdict == "fail" and "references" in check.evidence
    assert "parity.references.peagle" in check.figures["shared"] and "parity.references.rope" in check.figures["shared"]
    found = parity("diff", "--golden", small_golden.folder, "--device", ORACLE, "--stage", "tokens")
    assert found.code == 2 and "share source (parity.references)" in found.err
    for gate in ["stages", "decisions"] if WHOLE else []:
        found = parity("gate", "--golden", small_golden.folder, "--device", ORACLE, "--only", gate)
        assert found.code == 2 and "share source" in found.err


def test_a_source_file_under_another_name_is_red(small_golden, tmp_path, monkeypatch):
    shutil.copy(Path(__file__).parents[2] / "references" / "rope.py", tmp_path / "borrowed_angles.py")
    (tmp_path / "borrowing_device.py").write_text(
        "import parity.device\n\n\ndef load(**options):\n    return parity.device.load(**options)\n\n\n"
        "def angles():\n    import borrowed_angles\n\n    return borrowed_angles\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    check = independent(context(small_golden, "borrowing_device:load"))
    assert check.verdict == "fail" and "borrowed_angles is parity.references.rope under another name" in check.evidence


def test_synthetic_acceptance_fails_the_device(golden, monkeypatch):
    made = context(golden)
    assert real_acceptance(made).verdict == "pass"
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3.1")
    check = real_acceptance(made)
    assert check.verdict == "fail" and "SGLANG_SIMULATE_ACC_LEN=3.1" in check.evidence
