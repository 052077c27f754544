"""Bad input gets one sentence that names the file and the field, exit 2, and leaves nothing half-written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def refused(parity):
    """Run a command: one sentence on standard error with these words, exit 2, and no file left."""

    def check(*arguments: object, words: tuple[str, ...]) -> None:
        found = parity(*arguments)
        assert found.code == 2, found
        assert found.err.count("\n") == 1 and found.err.startswith("parity: "), found.err
        assert all(word in found.err for word in words), found.err
        assert not [path for path in parity.home.rglob("*") if path.is_file()]

    return check


@pytest.fixture
def drafter(tiny, tmp_path) -> Path:
    """A copy of the tiny drafter to spoil."""
    return Path(shutil.copytree(tiny / "drafter", tmp_path / "drafter"))


@pytest.fixture
def target(tiny, tmp_path) -> Path:
    """A copy of the tiny target to spoil."""
    return Path(shutil.copytree(tiny / "target", tmp_path / "target"))


def edit_config(checkpoint: Path, **changes: object) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(checkpoint: Path, change) -> Path:
    """Change the tensors of a checkpoint's first shard."""
    import torch
    from safetensors.torch import load_file, save_file

    shard = sorted(checkpoint.glob("*.safetensors"))[0]
    tensors = load_file(shard)
    change(tensors, torch)
    save_file(tensors, shard)
    return shard


@pytest.mark.parametrize("side", ["target", "drafter"])
def test_a_checkpoint_without_config(side, request, refused):
    checkpoint = request.getfixturevalue(side)
    (checkpoint / "config.json").unlink()
    refused("dump-golden", f"--{side}", checkpoint, words=("config.json",))


@pytest.mark.parametrize("side", ["target", "drafter"])
def test_another_architecture(side, request, refused):
    checkpoint = request.getfixturevalue(side)
    edit_config(checkpoint, architectures=["MambaForCausalLM"])
    refused("dump-golden", f"--{side}", checkpoint, words=("config.json", "MambaForCausalLM"))


@pytest.mark.parametrize("side", ["target", "drafter"])
def test_a_truncated_safetensors_file(side, request, refused):
    checkpoint = request.getfixturevalue(side)
    shard = sorted(checkpoint.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-1000])
    refused("dump-golden", f"--{side}", checkpoint, words=(shard.name, "truncated"))


def test_a_target_in_the_place_of_a_drafter(tiny, refused):
    said = "architectures is GptOssForCausalLM: that is a target, and a drafter is needed ("
    refused("dump-golden", "--plan", "--drafter", tiny / "target", words=(said, "LlamaForCausalLMEagle3"))


def test_a_target_without_a_tokenizer(target, refused, tmp_path):
    (target / "tokenizer.json").unlink()
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"text": "hi"}')
    said = f"{target} has no usable tokenizer: there is no tokenizer.json in it"
    refused("dump-golden", "--plan", "--target", target, "--prompts", prompts, words=(said,))


def test_a_missing_tensor(drafter, refused):
    edit_tensors(drafter, lambda tensors, torch: tensors.pop("fc.weight"))
    refused("dump-golden", "--drafter", drafter, words=("fc.weight", "missing"))


def test_a_surplus_tensor(drafter, refused):
    edit_tensors(drafter, lambda tensors, torch: tensors.update(extra=torch.zeros(3)))
    refused("dump-golden", "--drafter", drafter, words=("extra",))


def test_a_wrong_shape(drafter, refused):
    edit_tensors(drafter, lambda tensors, torch: tensors.update({"norm.weight": torch.ones(95)}))
    refused("dump-golden", "--drafter", drafter, words=("norm.weight", "95"))


def test_a_target_tensor_that_transformers_would_only_warn_about(target, refused):
    name = edit_tensors(target, lambda tensors, torch: tensors.update(surprise=torch.zeros(3))).name
    refused("dump-golden", "--target", target, words=("surprise", name))


def test_a_prompt_longer_than_the_context(refused, tmp_path):
    prompts = tmp_path / "long.jsonl"
    prompts.write_text(json.dumps({"id": "long", "ids": [7] * 600}))
    refused("dump-golden", "--prompts", prompts, words=("600", "512"))


@pytest.mark.parametrize("line", ["not json", "{}", '{"ids": [99999999, 1]}', '{"ids": "abc"}'])
def test_a_prompt_that_is_none(line, refused, tmp_path):
    prompts = tmp_path / "odd.jsonl"
    prompts.write_text(line)
    refused("dump-golden", "--prompts", prompts, words=("odd.jsonl:1",))


@pytest.mark.parametrize(("k", "words"), [(0, "no round drafts"), (9, "1 to 8")])
def test_k_beyond_what_the_drafter_was_made_for(k, words, refused):
    refused("dump-golden", "-k", k, words=(f"-k {k}", words))


def test_an_unknown_stage_glob(refused):
    refused("dump-golden", "--stage", "nonsense", words=("--stage nonsense",))


def test_no_golden_yet(refused):
    refused("diff", words=("dump-golden",))


def test_a_folder_that_is_no_dump(refused, tmp_path):
    refused("inspect", tmp_path, words=("manifest.json",))


def test_an_unknown_device(refused, shallow_golden):
    refused("run", "--golden", shallow_golden.folder, "--device", "tpu", words=("--device tpu",))


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("numpy,tp=3", "tp: 3 ranks cannot share out"),
        ("numpy,tp=0", "tp: 0"),
        ("numpy,tp", "'tp' is no option"),
        ("numpy,tp=", "'tp=' is no option"),
        ("numpy,tp=2,tp=4", "'tp=4' is no option"),
        ("numpy,k=2", "'k=2' is no option"),
        ("numpy,moe=dense", "moe: 'dense'"),
        ("numpy:2", "cannot be imported"),
    ],
)
def test_options_behind_a_device_that_do_not_fit(name, word, refused, shallow_golden):
    refused("run", "--golden", shallow_golden.folder, "--device", name, words=(word,))


def test_an_unknown_option(refused):
    refused("diff", "--nonsense", words=("--nonsense",))


def test_a_policy_with_a_row_for_nothing(parity, shallow_golden, tmp_path):
    policy = tmp_path / "policy.toml"
    row = '[[row]]\nstages = "%s"\njudge = "exact"\nreason = "because it must be"\n'
    policy.write_text('name = "odd"\n' + row % "nothing.*" + row % "*")
    found = parity("diff", "--golden", shallow_golden.folder, "--policy", policy)
    assert found.code == 2 and "nothing.*" in found.err


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_a_limit_that_limits_nothing(value, refused):
    refused("dump-golden", "--reference", "plain", "--memory", value, words=("--memory",))
    refused("diagnose", "--limit", value, words=("--limit",))
