"""The target's oracle: hooks change nothing, the cache changes nothing, the window is really there."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import GptOssForCausalLM
from transformers.utils import logging

from parity.errors import UsageError
from parity.references.capture import ignore
from parity.references.greedy import greedy
from parity.references.hf_checkpoint import check_target
from parity.references.hf_target import HFTarget

IDS = torch.arange(100) * 7 % 1200


@pytest.fixture(scope="module")
def target(tiny):
    return HFTarget(tiny / "target", torch.float32)


def test_logits_are_those_of_unhooked_eager_transformers(target, tiny):
    plain = GptOssForCausalLM.from_pretrained(tiny / "target", dtype=torch.float32, attn_implementation="eager")
    target.reset(ignore)
    with torch.no_grad():
        assert torch.equal(target.forward(IDS), plain(IDS[None]).logits[0])


def test_cached_rows_in_pieces_equal_one_forward(target):
    target.reset(ignore)
    whole = target.forward(IDS)
    target.reset(ignore)
    pieces = torch.cat([target.forward(part) for part in IDS.split([60, 1, 5, 34])])
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-4)


def test_a_cropped_cache_forgets_the_rejected_rows(target):
    target.reset(ignore)
    target.forward(IDS[:60])
    target.forward(IDS[90:95])
    target.crop(60)
    again = target.forward(IDS[60:65])
    target.reset(ignore)
    target.forward(IDS[:60])
    assert torch.equal(again, target.forward(IDS[60:65]))


def test_sliding_layers_forget_what_lies_past_the_window(target):
    seen = []

    def tap(stage, value):
        if stage == "target.layers.0.attn_out":
            seen.append(value.clone())
        return value

    window = target.config.sliding_window
    other = IDS.clone()
    other[0] += 1
    for ids in (IDS, other):
        target.reset(tap)
        target.forward(ids)
    same = (seen[0] == seen[1]).all(dim=1)
    assert not same[:window].any() and same[window:].all()


def test_yarn_is_not_lost_on_the_way_from_the_config(target):
    scaling = target.model.model.rotary_emb.attention_scaling
    assert scaling == pytest.approx(0.1 * torch.tensor(8.0).log().item() + 1)


def test_mxfp4_experts_load_dequantised(tiny):
    quantised = HFTarget(tiny / "target-mxfp4", torch.float32)
    weight = quantised.model.model.layers[0].mlp.experts.down_proj
    assert weight.dtype == torch.float32 and len(weight[0, :32, 0].abs().unique()) <= 8


@pytest.mark.parametrize("load", [HFTarget, lambda folder, dtype: greedy(folder, "float32")])
def test_no_bar_of_another_library_runs_where_a_reference_loads(load, tiny, capfd):
    logging.enable_progress_bar()
    load(tiny / "target", torch.float32)
    assert not logging.is_progress_bar_enabled() and capfd.readouterr().err == ""


@pytest.mark.parametrize("value", [None, "x", [8], -1, 1e308])
def test_a_config_that_hugging_face_refuses_is_one_sentence(value, tiny, tmp_path):
    shutil.copytree(tiny / "target", tmp_path / "target")
    config = tmp_path / "target" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_attention_heads": value}))
    with pytest.raises(UsageError, match=r"config\.json") as refused:
        check_target(tmp_path / "target")
    assert "\n" not in str(refused.value)
