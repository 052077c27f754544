"""Bad checkpoints and options: one sentence that names the file and the field or tensor."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from parity import device
from parity.errors import UsageError


def refused(pair, *words, k=4, **options):
    with pytest.raises(UsageError) as error:
        device.load(*pair, k, **options)
    message = str(error.value)
    assert all(word in message for word in words), message
    assert message.endswith(".") and "\n" not in message
    return message


def edit_json(path, **changes):
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))


def test_shards_and_one_file_load_the_same_weights(checkpoints, load, prompts):
    sharded = device.load(*checkpoints(shards=3), 4, precision="float32")
    assert sharded.generate(prompts[1], 9) == load(4).generate(prompts[1], 9)


@pytest.mark.parametrize("side", [0, 1])
def test_a_missing_folder_or_file_is_named(checkpoints, side):
    pair = checkpoints()
    folder = pair[side]
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
        refused(pair, str(folder / name), "missing")
    gone = list(pair)
    gone[side] = folder / "nowhere"
    refused(gone, str(folder / "nowhere"), "no such checkpoint folder")


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_config_that_is_no_json_object_is_named(checkpoints, text):
    pair = checkpoints()
    (pair[0] / "config.json").write_text(text)
    refused(pair, str(pair[0] / "config.json"), "JSON")


@pytest.mark.parametrize("cut", [4, 2000, -10])
def test_a_truncated_file_is_named(checkpoints, cut):
    pair = checkpoints()
    path = pair[0] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    refused(pair, str(path), "truncated")


@pytest.mark.parametrize(
    ("side", "name"), [(0, "model.layers.2.self_attn.sinks"), (1, "mask_hidden"), (1, "lm_head.weight")]
)
def test_a_missing_tensor_is_named(checkpoints, side, name):
    edit = {("edit_target", "edit_drafter")[side]: lambda tensors: tensors.pop(name)}
    pair = checkpoints(**edit)
    refused(pair, str(pair[side]), f"'{name}'", "missing")


def test_a_surplus_tensor_is_named(checkpoints):
    pair = checkpoints(edit_target=lambda tensors: tensors.update(extra=np.zeros(2, np.float32)))
    refused(pair, str(pair[0] / "model.safetensors"), "'extra'")


@pytest.mark.parametrize(
    ("side", "name"), [(0, "model.layers.1.mlp.experts.down_proj"), (0, "lm_head.weight"), (1, "fc.weight"), (1, "d2t")]
)
def test_a_tensor_of_another_shape_is_named_with_both_shapes(checkpoints, side, name):
    def shorten(tensors):
        tensors[name] = tensors[name][..., :-1].copy()

    pair = checkpoints(**{("edit_target", "edit_drafter")[side]: shorten})
    refused(pair, str(pair[side]), f"'{name}'", "shape")


def test_a_tensor_of_another_dtype_is_named(checkpoints):
    def whole(tensors):
        tensors["lm_head.weight"] = tensors["lm_head.weight"].astype(np.float32).astype(np.int64)

    refused(checkpoints(edit_target=whole), "'lm_head.weight'", "int64")


def test_an_index_and_its_shards_must_agree(checkpoints):
    pair = checkpoints(shards=2)
    index, shard = pair[0] / "model.safetensors.index.json", pair[0] / "model-1.safetensors"
    tensors = load_file(shard)
    name = sorted(tensors)[0]
    save_file({key: value for key, value in tensors.items() if key != name}, shard)
    refused(pair, str(index), f"'{name}'", "missing from the shard")
    save_file(tensors | {"extra": np.zeros(2, np.float32)}, shard)
    refused(pair, str(index), "'extra'", "not listed")
    shard.unlink()
    refused(pair, str(shard), "missing")
    index.write_text("{}")
    refused(pair, str(index), "weight_map")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "llama"}, "model_type"),
        ({"hidden_size": ...}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 4}, "num_key_value_heads"),
        ({"head_dim": 21}, "head_dim"),
        ({"num_experts_per_tok": 6}, "num_experts_per_tok"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"sliding_window": None}, "sliding_window"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 6}, "layer_types"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"attention_bias": False}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config.quant_method"),
        ({"eos_token_id": "end"}, "eos_token_id"),
        ({"rope_parameters": None}, "rope_theta"),
    ],
)
def test_a_target_config_that_this_device_cannot_run_is_refused_by_its_field(checkpoints, changes, field):
    pair = checkpoints()
    edit_json(pair[0] / "config.json", **changes)
    refused(pair, str(pair[0] / "config.json"), f"'{field}'")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "gpt_oss"}, "model_type"),
        ({"vocab_size": 78}, "vocab_size"),
        ({"ptd_token_id": ...}, "ptd_token_id"),
        ({"ptd_token_id": 77}, "ptd_token_id"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 7]}}, "eagle_aux_hidden_state_layer_ids"),
        ({"eagle_config": 3}, "eagle_config"),
        ({"norm_output": True}, "norm_output"),
        ({"attention_bias": True}, "attention_bias"),
        ({"norm_before_residual": "yes"}, "norm_before_residual"),
        ({"target_hidden_size": 60}, "target_hidden_size"),
        ({"num_parallel_positions": 0}, "num_parallel_positions"),
        ({"rope_scaling": {"rope_type": "yarm"}}, "rope_scaling.rope_type"),
    ],
)
def test_a_drafter_config_that_this_device_cannot_run_is_refused_by_its_field(checkpoints, changes, field):
    pair = checkpoints()
    edit_json(pair[1] / "config.json", **changes)
    refused(pair, str(pair[1] / "config.json"), f"{field}'")


def test_a_small_draft_vocabulary_needs_a_d2t_that_stays_inside_the_targets(checkpoints):
    refused(checkpoints(edit_drafter=lambda tensors: tensors.pop("d2t")), "'d2t'", "missing")

    def far(tensors):
        tensors["d2t"] = tensors["d2t"] + 30

    refused(checkpoints(edit_drafter=far), "'d2t'", "outside")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, ("k: 0",)),
        ({"k": 9}, ("k: 9", "num_parallel_positions", "config.json")),
        ({"k": 2.0}, ("k: 2.0",)),
        ({"precision": "float16"}, ("precision", "float16", "bfloat16, float32")),
        ({"engine": "tpu"}, ("engine", "tpu", "numpy")),
        ({"max_positions": 97}, ("max_positions", "97", "96")),
        ({"max_positions": 0}, ("max_positions", "0")),
    ],
)
def test_an_option_out_of_range_is_refused(pair, options, words):
    refused(pair, *words, **options)


def test_the_drafts_of_a_drafter_that_names_no_limit_are_not_limited(checkpoints):
    pair = checkpoints()
    edit_json(pair[1] / "config.json", num_parallel_positions=...)
    assert device.load(*pair, 12).k == 12


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [(None, 5, (5,)), ({"eos_token_id": [7, 9]}, 5, (7, 9)), ({"do_sample": False}, [5, 6], (5, 6)), (None, None, ())],
)
def test_end_tokens_come_from_the_generation_config_first(checkpoints, generation, config, expected):
    pair = checkpoints({"eos_token_id": config}, generation=generation)
    assert device.load(*pair, 2).target.config.eos == expected


def test_taps_default_to_the_second_middle_and_third_last_layer(checkpoints):
    pair = checkpoints()
    edit_json(pair[1] / "config.json", eagle_config=None)
    assert device.load(*pair, 2).drafter.config.taps == (2, 3, 3)
    edit_json(pair[1] / "config.json", eagle_aux_hidden_state_layer_ids=[5, 1, 0])
    assert device.load(*pair, 2).drafter.config.taps == (5, 1, 0)


def test_float32_runs_on_the_stored_weights_and_bfloat16_rounds_wider_ones_once(checkpoints):
    def widen(tensors):
        tensors["lm_head.weight"] = np.random.default_rng(0).standard_normal((77, 64)).astype(np.float32)

    pair = checkpoints(edit_target=widen)
    exact = device.load(*pair, 2, precision="float32").target.outer["head"].held
    rounded = device.load(*pair, 2, precision="bfloat16").target.outer["head"].held
    np.testing.assert_array_equal(exact.astype(ml_dtypes.bfloat16).astype(np.float32), rounded)
    assert (exact != rounded).any()


@pytest.mark.parametrize(
    "where", ["../outside.safetensors", "{folder}/model-1.safetensors", "inner/model-1.safetensors", "..", ""]
)
def test_a_shard_elsewhere_is_refused_before_it_is_opened(where, checkpoints):
    pair = checkpoints(shards=2)
    index, shard = pair[0] / "model.safetensors.index.json", pair[0] / "model-1.safetensors"
    name = where.format(folder=pair[0])
    (pair[0] / "inner").mkdir()
    for place in (pair[0].parent / "outside.safetensors", pair[0] / "inner/model-1.safetensors"):
        place.write_bytes(shard.read_bytes())
    mapped = json.loads(index.read_text())["weight_map"]
    edit_json(index, weight_map={tensor: name if file == shard.name else file for tensor, file in mapped.items()})
    refused(pair, str(index), repr(name), "no file name of this folder")
