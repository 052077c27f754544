"""Checkpoints with their MLPs in another order: the same function, other roundings."""

from __future__ import annotations

import pytest
import torch
from transformers import GptOssForCausalLM

from parity.references.drafting import load_loop
from parity.references.vllm_capture.reordered import reordered
from tests.fixtures.test_recipe_evaluate import Silent

IDS = torch.randint(0, 1200, (1, 400), generator=torch.Generator().manual_seed(0))
"""Many rows: float32 sums in another order round otherwise in one element of 40,000, and layers spread it."""


def logits(folder, dtype):
    model = GptOssForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(input_ids=IDS).logits.float()


@pytest.fixture(scope="module")
def other(tiny, tmp_path_factory):
    return reordered(tiny / "target", 1, tmp_path_factory.mktemp("reordered") / "target")


def test_number_0_is_the_checkpoint_itself(tiny, tmp_path):
    assert reordered(tiny / "target", 0, tmp_path / "none") == tiny / "target"
    assert not (tmp_path / "none").exists()


def test_the_target_computes_the_same_and_rounds_otherwise(tiny, other):
    exact = logits(tiny / "target", torch.float32)
    assert (logits(other, torch.float32) - exact).abs().max() < 1e-4
    rounded, again = (logits(folder, torch.bfloat16) for folder in (tiny / "target", other))
    assert not torch.equal(rounded, again)
    assert 0.5 < (again - exact).norm() / (rounded - exact).norm() < 2


def test_a_weight_left_out_would_show(tiny, other, tmp_path):
    from safetensors.torch import load_file, save_file

    wrong = reordered(tiny / "target", 1, tmp_path / "target")
    for path in wrong.glob("*.safetensors"):
        own = load_file(tiny / "target" / path.name)
        mixed = {name: own[name] if name.endswith("down_proj") else weight for name, weight in load_file(path).items()}
        save_file(mixed, path, {"format": "pt"})
    assert (logits(wrong, torch.float32) - logits(tiny / "target", torch.float32)).abs().max() > 1


@pytest.mark.parametrize("drafter", ["drafter", "eagle3"])
def test_the_drafters_compute_the_same(tiny, tmp_path, drafter):
    changed = reordered(tiny / drafter, 2, tmp_path / drafter)
    loops = [load_loop(tiny / "target", folder, torch.float32, 3) for folder in (tiny / drafter, changed)]
    one, other = (loop.drafter.state_dict() for loop in loops)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    runs = [loop.run(list(range(5, 45)), 12, Silent()) for loop in loops]
    assert runs[0].accepted_drafts == runs[1].accepted_drafts
