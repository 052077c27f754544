"""Where bfloat16 rounds, stage by stage: each expectation is float64 with the named roundings and no other."""

import ml_dtypes
import numpy as np

from parity.device.engines import numpy_engine as engine
from parity.device.kernels import attention, linear, moe, rope
from parity.device.rope_config import RopeConfig

BF16 = ml_dtypes.bfloat16


def values(seed, *shape):
    """Random bfloat16 values on the host."""
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


def rounded(x):
    """One rounding, in float64 again; float32 between is what an accumulator holds."""
    return np.asarray(x).astype(np.float32).astype(BF16).astype(float)


def assert_same(stage, got, expected):
    """Bit for bit but for the rare value that a float32 sum puts on the other side of a rounding boundary."""
    got = engine.host(got).astype(float)
    off = got != expected
    assert off.mean() < 0.01, stage
    np.testing.assert_allclose(got, expected, rtol=2**-7, atol=1e-6, err_msg=stage)


def test_a_linear_layer_rounds_once_with_its_bias():
    x, weight, bias = values(1, 2, 9, 64), values(2, 64, 40), values(3, 40)
    got = linear.linear(*map(engine.array, (x, weight, bias)))
    assert got.dtype == BF16
    assert_same("linear", got, rounded(x.astype(float) @ weight.astype(float) + bias.astype(float)))


def test_rotation_rounds_once_and_its_tables_are_not_rounded():
    x = values(4, 1, 3, 2, 16)
    cos, sin = rope.tables(RopeConfig("default", 100.0), 16, 500)
    at = np.array([[3, 250, 499]])
    got = rope.rotate(engine.array(x), engine.array(cos[at]), engine.array(sin[at]))
    wide, c, s = x.astype(float), cos[at][:, :, None].astype(float), sin[at][:, :, None].astype(float)
    expected = np.concatenate([wide[..., :8] * c - wide[..., 8:] * s, wide[..., 8:] * c + wide[..., :8] * s], axis=-1)
    assert_same("rotate", got, rounded(expected))


def test_attention_rounds_its_weights_and_its_sum_and_nothing_else():
    q, k, v = values(5, 1, 4, 2, 16), values(6, 1, 300, 2, 16), values(7, 1, 300, 2, 16)
    seen = attention.visible(engine.array(np.array([[299, 280, 100, 0]])), 300, None)
    got = attention.attend(*map(engine.array, (q, k, v)), seen)
    scores = np.einsum("bsnd,bpnd->bnsp", q.astype(float), k.astype(float)) / 4
    parts = np.where(seen.held[:, None], np.exp(scores), 0)
    weights = rounded(parts / parts.sum(axis=-1, keepdims=True))
    assert_same("attend", got, rounded(np.einsum("bnsp,bpnd->bsnd", weights, v.astype(float))).reshape(1, 4, 32))


def test_softmax_weights_over_many_keys_sum_to_one():
    scores = engine.array(np.zeros((1, 4096), np.float32))
    total = engine.host(attention.softmax(scores).astype(BF16)).astype(float).sum()
    assert total == 1.0


def test_the_activation_rounds_once():
    gate, up = 4 * values(8, 200).astype(np.float32), 4 * values(9, 200).astype(np.float32)
    gate, up = gate.astype(BF16), up.astype(BF16)
    got = moe.clamped_swiglu(engine.array(gate), engine.array(up), 7.0, 1.702)
    wide, lifted = np.minimum(gate.astype(float), 7), np.clip(up.astype(float), -7, 7) + 1
    assert_same("clamped_swiglu", got, rounded(lifted * wide / (1 + np.exp(-1.702 * wide))))


def test_the_experts_are_summed_in_float32():
    outputs = np.random.default_rng(10).standard_normal((3, 1, 5, 8)).astype(np.float32)
    chosen, shares = np.tile([0, 2], (1, 5, 1)), np.tile(np.float32([0.3, 0.7]), (1, 5, 1))
    got = moe.mix(engine.array(outputs), engine.array(chosen), engine.array(shares))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got.held, 0.3 * outputs[0] + 0.7 * outputs[2], rtol=1e-6, atol=1e-7)


def test_weights_and_caches_are_bfloat16_and_the_rope_tables_float32(load):
    device = load(4, "bfloat16")
    for model in (device.target, device.drafter):
        assert {one.dtype.name for one in model.tables} == {"float32"}, model.side
        assert {one.dtype.name for pair in model.caches for one in pair} == {"bfloat16"}, model.side
        assert {one.dtype.name for layer in model.layers for one in layer.values()} == {"bfloat16"}, model.side


def test_a_bfloat16_stage_is_within_a_few_roundings_of_float32_on_the_same_input(load, prompts):
    golden, errors = {}, {}
    load(4).prefill(prompts[2], 8, lambda stage, value: golden.setdefault(stage, value))

    def local(stage, value):
        error = np.linalg.norm(value.astype(float) - golden[stage]) / max(np.linalg.norm(golden[stage]), 1)
        errors[stage] = error if value.dtype == BF16 else 0
        return golden[stage]

    load(4, "bfloat16").prefill(prompts[2], 8, local)
    worst = max(errors, key=errors.get)
    # One rounding to 8 bits is an error of 2**-9 / sqrt(3) = 0.11 %; the longest stage, an MLP, has five in a row.
    assert errors[worst] < 0.01, worst
