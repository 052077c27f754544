"""Drafters in the formats they are published in: device and references read each alike and refuse the rest by name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from parity import device
from parity.device.checkpoint import Described
from parity.device.config import target_config
from parity.device.drafter_config import drafter_config as device_config
from parity.errors import UsageError
from parity.references import drafting
from parity.references.seam import load

PROMPT = [30, 41, 52, 63, 74, 85]
K = 3
OUTSIDE = ("draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
TAPS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(scope="module")
def tiny(three_layers):
    return three_layers


def renamed(old: str, new: str, before: str = "", top: tuple[str, ...] = ("lm_head", "d2t", "t2d", "mask_hidden")):
    """Tensors in another layout: the layer under another name, and a beginning for all but the topmost."""

    def change(tensors):
        inner = {name.replace(old, new): value for name, value in tensors.items()}
        return {name if name.startswith(top) else before + name: value for name, value in inner.items()}

    return change


hub, layered, wrapped = (
    renamed("", ""),
    renamed("midlayer.", "layers.0."),
    renamed("midlayer.", "layers.0.", "model."),
)


def speculators(kind="eagle3", **changes):
    """The config as vllm-project/speculators writes it."""

    def whole(raw):
        outside = {name: raw.pop(name) for name in OUTSIDE if name in raw}
        taps = raw.pop("eagle_config")[TAPS]
        token = {"mask_token_id": raw.pop("ptd_token_id")} if "ptd_token_id" in raw else {}
        raw.pop("num_parallel_positions", None)
        return {
            "architectures": ["Eagle3DraftModel" if kind == "eagle3" else "PEagleDraftModel"],
            "speculators_model_type": kind,
            "speculators_version": "0.5.0",
            "speculators_config": {"algorithm": kind, "proposal_methods": [{"speculative_tokens": 3}]},
            "transformer_layer_config": {**raw, **changes.pop("inner", {})},
            **outside,
            **token,
            TAPS: taps,
            **changes,
        }

    return whole


def nemo(**changes):
    """The config as NeMo Automodel writes it: the target's with the drafter's keys on top."""

    def whole(raw):
        taps = raw.pop("eagle_config")
        token = {"mask_token_id": raw.pop("ptd_token_id"), "parallel_drafting": True} if "ptd_token_id" in raw else {}
        layers = {} if token else {"num_hidden_layers": 24}
        raw |= {"architectures": ["LlamaEagle3DraftModel"], "model_type": "gpt_oss", "eagle_config": taps}
        of_target = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128}
        return raw | layers | of_target | {"num_local_experts": 32, "router_aux_loss_coef": 0.9} | token | changes

    return whole


def seen(made, tiny, folder) -> tuple[list, list]:
    """Drafts of two rounds and the draft logits of both, in float32."""
    pipeline, logits = made(tiny / "target", folder, K, precision="float32"), []

    def tap(stage, value):
        logits.extend([np.array(value)] if stage == "drafter.logits" else [])
        return value

    pipeline.prefill(PROMPT, 12, tap)
    drafts = []
    for _ in range(2):
        drafts.append(pipeline.draft(tap).tolist())
        pipeline.commit(pipeline.draft(tap), pipeline.verify(np.array(drafts[-1]), tap), tap)
    return drafts, logits


@pytest.fixture(scope="module")
def native(tiny):
    """What the checkpoint in the hub's own format gives, by drafter."""
    return {source: seen(load, tiny, tiny / source) for source in ("eagle3", "drafter")}


@pytest.mark.parametrize("made", [device.load, load], ids=["device", "references"])
@pytest.mark.parametrize(
    ("source", "whole", "change"),
    [
        ("eagle3", None, layered),
        ("eagle3", None, wrapped),
        ("eagle3", speculators(), layered),
        ("eagle3", nemo(), wrapped),
        ("drafter", speculators("peagle"), layered),
        ("drafter", nemo(), wrapped),
    ],
    ids=["layers.0", "model.layers.0", "speculators", "nemo", "p-eagle speculators", "p-eagle nemo"],
)
def test_every_format_is_the_same_drafter(made, source, whole, change, native, edited, tiny):
    drafts, logits = seen(made, tiny, edited(change, source, whole))
    assert drafts == native[source][0]
    for mine, true in zip(logits, native[source][1], strict=True):
        np.testing.assert_allclose(mine, true, atol=2e-4)


NORMS = {"input_norm.weight": 288, **{f"fc_norm.{tap}.weight": 96 for tap in range(3)}}


def with_norms(*beginnings):
    """Tensors for the norms before `fc`, away from one."""

    def change(tensors):
        rng = np.random.default_rng(1)
        made = {name: rng.uniform(0.3, 1.9, size).astype(np.float32) for name, size in NORMS.items()}
        return tensors | {name: value for name, value in made.items() if name.startswith(beginnings or ("none",))}

    return change


@pytest.mark.parametrize(
    ("source", "options", "tensors"),
    [
        ("eagle3", ("norm_before_fc",), ("input_norm",)),
        ("eagle3", ("fc_norm",), ("fc_norm",)),
        ("eagle3", ("norm_before_residual",), ()),
        ("eagle3", ("norm_output",), ()),
        ("eagle3", ("fc_norm", "norm_before_residual", "norm_output"), ("fc_norm",)),
        ("drafter", ("norm_before_fc",), ("input_norm",)),
        ("drafter", ("fc_norm",), ("fc_norm",)),
    ],
    ids=lambda one: "+".join(one) if isinstance(one, tuple) else one,
)
def test_the_device_norms_what_the_references_norm(source, options, tensors, native, edited, tiny):
    folder = edited(with_norms(*tensors), source, **dict.fromkeys(options, True))
    ours, theirs = (seen(made, tiny, folder) for made in (device.load, load))
    for mine, true in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(mine, true, atol=2e-4)
    assert max(np.abs(true - old).max() for true, old in zip(theirs[1], native[source][1], strict=True)) > 0.1


def refused(folder, tiny, word):
    """Both sides refuse this drafter's tensors in words that name it."""
    for made in (device.load, load):
        with pytest.raises(UsageError, match=word):
            made(tiny / "target", folder, K)


def config_refused(folder, tiny, word):
    """Both sides refuse this drafter's config in words that name it."""
    with pytest.raises(UsageError, match=word):
        drafting.drafter_config(folder)
    with pytest.raises(UsageError, match=word):
        device_config(Described(folder), target_config(Described(tiny / "target")))


@pytest.mark.parametrize(
    ("whole", "word"),
    [
        (speculators("mtp"), "speculators_model_type.*'mtp'"),
        (speculators(norm_before_residual=None), "norm_before_residual.*is missing"),
        (speculators(draft_vocab_size=None), "draft_vocab_size.*is missing"),
        (speculators(transformer_layer_config=None), "transformer_layer_config.*is missing"),
        (speculators(inner={"model_type": "qwen3"}), "model_type.*qwen3"),
        (speculators(inner={"model_type": None}), "model_type.*"),
        (speculators(inner={"fc_norm": True}, fc_norm=False), "fc_norm.*contradict"),
        (speculators(mask_token_id=7), "mask_token_id|placeholder"),
        (speculators(fc_norm=True, norm_before_fc=True), "fc_norm.*exclude each other"),
        (speculators(norm_output="yes"), "norm_output"),
        (speculators(inner={"attention_bias": True}), "attention_bias"),
        (speculators(inner={"layer_types": ["sliding_attention"]}), "layer_types"),
        (speculators(inner={"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}), "longrope"),
        (nemo(parallel_drafting=True), "mask_token_id.*is missing|needs mask_token_id"),
        (nemo(mask_token_id=7), "mask_token_id|placeholder"),
        (nemo(attention_bias=True), "attention_bias"),
        (nemo(hidden_act="gelu"), "hidden_act"),
        (lambda raw: raw | {"mlp_bias": True}, "mlp_bias"),
        (lambda raw: raw | {"logit_scale": 0.5}, "logit_scale"),
        (lambda raw: raw | {"tie_word_embeddings": True}, "tie_word_embeddings"),
        (lambda raw: raw | {"num_aux_hidden_states": 4}, "num_aux_hidden_states"),
        (lambda raw: raw | {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        (lambda raw: raw | {"norm_output": 1}, "norm_output"),
        (lambda raw: raw | {"fc_norm": True, "eagle_config": raw["eagle_config"] | {"fc_norm": False}}, "fc_norm"),
    ],
)
def test_what_a_config_leaves_open_or_asks_for_in_vain_is_refused_by_name(whole, word, edited, tiny):
    config_refused(edited(whole=whole), tiny, word)


@pytest.mark.parametrize(("option", "tensor"), [("fc_norm", r"fc_norm\.\d"), ("norm_before_fc", "input_norm")])
def test_an_option_without_its_tensor_is_refused(option, tensor, edited, tiny):
    refused(edited(**{option: True}), tiny, rf"{tensor}\.weight.*missing")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (with_norms("fc_norm"), r"fc_norm\.\d\.weight"),
        (with_norms("input_norm"), r"input_norm\.weight"),
        (lambda tensors: tensors | {"verifier_norm.weight": tensors["norm.weight"]}, r"verifier_norm\.weight"),
        (lambda tensors: tensors | {"model.norm.weight": tensors["norm.weight"]}, r"norm\.weight|two layouts"),
        (lambda tensors: tensors | {"layers.0.mlp.extra": tensors["norm.weight"]}, r"mlp\.extra"),
    ],
)
def test_a_tensor_that_nothing_reads_is_named(change, word, edited, tiny):
    refused(edited(change), tiny, word)


def test_p_eagle_has_no_hidden_to_norm_before_it_is_recycled(edited, tiny):
    config_refused(edited(source="drafter", norm_output=True), tiny, "norm_output")


def test_two_tokens_for_masked_rows_are_refused(edited, tiny):
    config_refused(
        edited(source="drafter", mask_token_id=7), tiny, "mask_token_id.*contradict|ptd_token_id.*contradict"
    )


def test_both_sides_take_a_first_hub_drafters_silence_for_llamas_rope_alone(edited, tiny):
    """No word of RoPE is Llama's plain one; half a word is refused."""
    silent = edited(rope_theta="gone", rope_scaling="gone")
    rope = device_config(Described(silent), target_config(Described(tiny / "target"))).attention.rope
    assert (rope.kind, rope.theta) == ("default", 10000.0)
    theirs = drafting.drafter_config(silent).rope
    assert theirs == {"rope_type": "default", "rope_theta": 10000.0}
    config_refused(edited(rope_theta="gone", rope_scaling={"rope_type": "default"}), tiny, "rope_theta")


YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 5e4}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize(
    ("rope", "word"),
    [
        *((YARN | {name: None}, name) for name in ("factor", "original_max_position_embeddings", "rope_theta")),
        *((LLAMA3 | {name: None}, name) for name in LLAMA3 if name != "rope_type"),
        ({"rope_type": "default", "rope_theta": None}, "rope_theta"),
        (YARN | {"rope_type": "linear"}, "rope_type"),
        (YARN | {"rope_type": "Yarn"}, "rope_type"),
        (YARN | {"rope_type": None}, "rope_type|factor"),
        (YARN | {"rope_type": None, "type": "dynamic"}, "rope_type"),
        (YARN | {"type": "llama3"}, "type"),
        *((YARN | {name: wrong}, name) for name, wrong in [("beta_fast", 0), ("beta_slow", "1"), ("truncate", 1)]),
        *((YARN | {name: -1.0}, name) for name in ("factor", "attention_factor", "rope_theta")),
        (YARN | {"mscale": 1.0}, "mscale"),
        (LLAMA3 | {"beta_fast": 32.0}, "beta_fast"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "low_freq_factor|high_freq_factor"),
        ({"rope_type": "default", "rope_theta": 1e4, "factor": 8.0}, "factor"),
        (YARN | {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
    ids=json.dumps,
)
def test_a_schedule_that_is_not_known_in_full_is_refused_on_both_sides(rope, word, spelling, edited, tiny):
    theta = rope["rope_theta"] if spelling == "rope_scaling" else "gone"
    inner = {name: value for name, value in rope.items() if name != "rope_theta" or spelling == "rope_parameters"}
    other = "rope_scaling" if spelling == "rope_parameters" else "rope_parameters"
    config_refused(edited(**{spelling: inner, other: "gone", "rope_theta": theta}), tiny, word)
