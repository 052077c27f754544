"""Whole layers in float32 against the equations in float64, one row at a time."""

import math

import numpy as np
import pytest

from parity.device.kernels import rope
from parity.device.recorder import Recorder
from parity.device.rows import pad_rows

# Float32 against float64 through six layers; values are of order one.
FLOAT32 = dict(rtol=2e-4, atol=2e-4)


class Recording(dict):
    def __call__(self, stage, value):
        self[stage] = value
        return value


def rms(x, eps=1e-5):
    return x / np.sqrt(np.mean(x**2) + eps)


def turned(x, frequencies, position, magnitude):
    half = len(frequencies)
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * position * frequencies) * magnitude
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def attended(q, keys, values, sinks=None):
    """q [N, D] over lists of keys and values [G, D]."""
    keys, values, out = np.array(keys), np.array(values), np.zeros(q.shape)
    for head in range(len(q)):
        group = head * keys.shape[1] // len(q)
        parts = np.exp(keys[:, group] @ q[head] / math.sqrt(q.shape[1]))
        total = parts.sum() + (math.exp(sinks[head]) if sinks is not None else 0)
        out[head] = parts @ values[:, group] / total
    return out.reshape(-1)


def target_by_the_equations(tensors, config, ids, rope_config):
    """Every `out` [L, S, H] and the logits [S, V], from the stored tensors."""
    w = {name: value.astype(float) for name, value in tensors.items()}
    frequencies = rope.frequencies(rope_config, config["head_dim"])
    stream = [w["model.embed_tokens.weight"][token] for token in ids]
    outs = []
    for layer in range(config["num_hidden_layers"]):
        window = config["sliding_window"] if layer % 2 == 0 else len(ids)
        prefix = f"model.layers.{layer}."
        stream = one_target_layer(w, prefix, stream, window, config, frequencies, rope_config.magnitude)
        outs.append(stream)
    final = [rms(row) * w["model.norm.weight"] for row in stream]
    return np.array(outs), np.array(final) @ w["lm_head.weight"].T


def one_target_layer(w, prefix, stream, window, config, frequencies, magnitude):
    keys, values, out = [], [], []
    for position, x in enumerate(stream):
        normed = rms(x) * w[f"{prefix}input_layernorm.weight"]
        q, k, v = (
            (w[f"{prefix}self_attn.{name}_proj.weight"] @ normed + w[f"{prefix}self_attn.{name}_proj.bias"]).reshape(
                -1, config["head_dim"]
            )
            for name in "qkv"
        )
        keys.append(turned(k, frequencies, position, magnitude))
        values.append(v)
        q = turned(q, frequencies, position, magnitude)
        mixed = attended(q, keys[-window:], values[-window:], w[f"{prefix}self_attn.sinks"])
        x = x + w[f"{prefix}self_attn.o_proj.weight"] @ mixed + w[f"{prefix}self_attn.o_proj.bias"]
        out.append(x + experts(w, prefix, rms(x) * w[f"{prefix}post_attention_layernorm.weight"], config))
    return out


def experts(w, prefix, x, config):
    logits = w[f"{prefix}mlp.router.weight"] @ x + w[f"{prefix}mlp.router.bias"]
    chosen = np.argsort(-logits, kind="stable")[: config["num_experts_per_tok"]]
    total, inner = np.exp(logits[chosen]).sum(), f"{prefix}mlp.experts."
    out = 0
    for e in chosen:
        both = x @ w[f"{inner}gate_up_proj"][e] + w[f"{inner}gate_up_proj_bias"][e]
        gate, up = np.minimum(both[0::2], 7), np.clip(both[1::2], -7, 7)
        active = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
        down = active @ w[f"{inner}down_proj"][e] + w[f"{inner}down_proj_bias"][e]
        out = out + math.exp(logits[e]) / total * down
    return out


def drafter_by_the_equations(tensors, config, ids, fused, rope_config, residual_normed):
    """Every `out` [layers, W, H] of rows at positions 0, 1, ..."""
    w = {name: value.astype(float) for name, value in tensors.items()}
    frequencies, outs, stream = rope.frequencies(rope_config, config["head_dim"]), [], fused
    for layer in range(config["num_hidden_layers"]):
        prefix = f"layers.{layer}." if layer else "midlayer."
        keys, values, out = [], [], []
        for position, x in enumerate(stream):
            residual, wide = x, rms(x) * w[f"{prefix}input_layernorm.weight"]
            if not layer:
                normed = rms(x) * w["midlayer.hidden_norm.weight"]
                embedded = w["embed_tokens.weight"][ids[position]]
                wide = np.concatenate([rms(embedded) * w["midlayer.input_layernorm.weight"], normed])
                residual = normed if residual_normed else x
            q, k, v = (
                (w[f"{prefix}self_attn.{name}_proj.weight"] @ wide).reshape(-1, config["head_dim"]) for name in "qkv"
            )
            keys.append(turned(k, frequencies, position, 1.0))
            values.append(v)
            mixed = attended(turned(q, frequencies, position, 1.0), keys, values)
            x = residual + w[f"{prefix}self_attn.o_proj.weight"] @ mixed
            normed = rms(x) * w[f"{prefix}post_attention_layernorm.weight"]
            gate = w[f"{prefix}mlp.gate_proj.weight"] @ normed
            active = gate / (1 + np.exp(-gate)) * (w[f"{prefix}mlp.up_proj.weight"] @ normed)
            out.append(x + w[f"{prefix}mlp.down_proj.weight"] @ active)
        stream = out
        outs.append(out)
    return np.array(outs)


def test_the_target_is_its_equations_layer_by_layer(load, prompts, builders):
    device, shown = load(), Recording()
    device.prefill(prompts[2], 8, shown)
    config = builders.TARGET
    rope_config = device.target.config.attention.rope
    outs, logits = target_by_the_equations(builders.target_tensors(config), config, prompts[2], rope_config)
    for layer, out in enumerate(outs):
        np.testing.assert_allclose(shown[f"target.layers.{layer}.out"], out, err_msg=f"layer {layer} out", **FLOAT32)
    np.testing.assert_allclose(shown["target.logits"], logits, err_msg="target.logits", **FLOAT32)


@pytest.mark.parametrize("residual_normed", [False, True])
def test_the_drafter_is_its_equations_over_committed_and_masked_rows(checkpoints, prompts, builders, residual_normed):
    from parity import device as package

    device = package.load(*checkpoints(drafter={"norm_before_residual": residual_normed}), 4, precision="float32")
    whole, shown = Recording(), Recording()
    device.prefill(prompts[1], 8, whole)
    device.draft(shown)
    tensors = builders.drafter_tensors(builders.DRAFTER, builders.TARGET)
    taps = np.concatenate([whole["drafter.taps"], shown["drafter.taps"]])
    ids = np.concatenate([whole["drafter.input_ids"], shown["drafter.input_ids"]])
    mask = np.tile(tensors["mask_hidden"][0], (3, 1)).astype(float)
    fused = list(np.concatenate([taps.astype(float), mask]) @ tensors["fc.weight"].astype(float).T)
    rope_config = device.drafter.config.attention.rope
    outs = drafter_by_the_equations(tensors, builders.DRAFTER, ids, fused, rope_config, residual_normed)
    np.testing.assert_allclose(shown["drafter.fc_out"], fused[-4:], err_msg="drafter.fc_out", **FLOAT32)
    for layer, out in enumerate(outs):
        stage = f"drafter.layers.{layer}.out"
        np.testing.assert_allclose(np.concatenate([whole[stage], shown[stage]]), out, err_msg=stage, **FLOAT32)
    final = np.array([rms(row) for row in outs[-1][-4:]]) * tensors["norm.weight"].astype(float)
    logits = final @ tensors["lm_head.weight"].astype(float).T
    np.testing.assert_allclose(shown["drafter.logits"], logits, err_msg="drafter.logits", **FLOAT32)
    expected = logits.argmax(axis=1) + tensors["d2t"][logits.argmax(axis=1)]
    np.testing.assert_array_equal(shown["drafter.draft_tokens"], expected)


def test_the_taps_are_the_streams_entering_their_layers(load, prompts):
    device, shown = load(), Recording()
    device.prefill(prompts[1], 8, shown)
    entering = [shown[f"target.layers.{number - 1}.out"][:-1] for number in (2, 3, 4)]
    np.testing.assert_array_equal(shown["drafter.taps"], np.concatenate(entering, axis=1))


def forward(target, ids, width):
    """Rows behind the cache; logits of the logical ones."""
    positions, shown = target.length + np.arange(len(ids)), Recording()
    record = Recorder(shown, target.engine)
    rows = pad_rows(ids, positions, positions, width, target.trash)
    target.choose(target.forward(rows, (), record)[0], rows, "target", record)
    target.length += len(ids)
    return shown["target.logits"]


@pytest.mark.parametrize("pieces", [[40], [1] * 40, [5] * 8, [13, 1, 26]])
def test_a_prompt_in_pieces_gives_every_row_of_the_whole_prompt(load, prompts, pieces):
    target = load().target
    target.clear()
    whole = forward(target, prompts[2], 64)
    target.clear()
    ends = np.cumsum(pieces)
    rows = [forward(target, prompts[2][end - size : end], size + 2) for size, end in zip(pieces, ends, strict=True)]
    np.testing.assert_allclose(np.concatenate(rows), whole, err_msg="target.logits", **FLOAT32)


def test_verify_rows_are_those_of_single_row_decoding(load, prompts):
    device, shown = load(k=5), Recording()
    first = device.prefill(prompts[2], 20)
    drafts = np.array([3, 1, 4, 1, 5])
    device.verify(drafts, shown)
    device.prefill(prompts[2], 20)
    for row, token in enumerate([first, *drafts]):
        logits = forward(device.target, [token], 1)
        np.testing.assert_allclose(shown["verify.logits"][row], logits[0], err_msg="verify.logits", **FLOAT32)
