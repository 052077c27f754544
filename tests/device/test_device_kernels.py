"""Attention, experts, norms, acceptance and caches against loops in float64 written here."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.device.config import TargetConfig
from parity.device.engines import numpy_engine as engine
from parity.device.kernels import accept, cache, moe, norm, rows
from parity.device.kernels.attention import attend, visible
from parity.device.kernels.tap import untapped

# Float32 sums of a few hundred products of order one, against float64.
FLOAT32 = dict(rtol=1e-5, atol=1e-5)


def arrays(seed, *shapes):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def attention_by_loops(q, k, v, positions, window, sinks):
    """One output row per sequence, query and head; the key's position is its row."""
    out = np.zeros(q.shape)
    per_group = q.shape[2] // k.shape[2]
    for b, s, n in np.ndindex(q.shape[:3]):
        at, group = positions[b, s], n // per_group
        seen = [j for j in range(k.shape[1]) if j <= at and (window is None or at - j < window)]
        scores = [float(q[b, s, n].astype(float) @ k[b, j, group]) / math.sqrt(q.shape[3]) for j in seen]
        total = sum(math.exp(score) for score in scores) + (math.exp(sinks[n]) if sinks is not None else 0)
        for score, j in zip(scores, seen, strict=True):
            out[b, s, n] += math.exp(score) / total * v[b, j, group]
    return out.reshape(*q.shape[:2], -1)


@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_attention_sees_by_position_window_group_and_sink(window, with_sinks):
    q, k, v, sinks = arrays(1, (2, 3, 6, 8), (2, 11, 3, 8), (2, 11, 3, 8), (6,))
    sinks = 2 * sinks if with_sinks else None
    positions = np.array([[4, 5, 9], [0, 7, 3]])
    seen = visible(engine.array(positions), 11, window)
    got = attend(*map(engine.array, (q, k, v)), seen, None if sinks is None else engine.array(sinks))
    np.testing.assert_allclose(engine.host(got), attention_by_loops(q, k, v, positions, window, sinks), **FLOAT32)


def test_attention_never_reads_a_row_that_no_query_sees():
    q, k, v = arrays(2, (1, 2, 4, 8), (1, 9, 2, 8), (1, 9, 2, 8))
    seen = visible(engine.array(np.array([[3, 4]])), 9, None)
    clean = attend(*map(engine.array, (q, k, v)), seen)
    k[:, 5:], v[:, 5:] = np.nan, np.nan
    np.testing.assert_array_equal(attend(*map(engine.array, (q, k, v)), seen).held, clean.held)


def experts_by_loops(x, w, k, limit, alpha):
    logits = x.astype(float) @ w["router"] + w["router_bias"]
    out = np.zeros(x.shape)
    for b, s in np.ndindex(x.shape[:2]):
        chosen = sorted(range(logits.shape[-1]), key=lambda e: (-logits[b, s, e], e))[:k]
        total = sum(math.exp(logits[b, s, e]) for e in chosen)
        for e in chosen:
            gate = np.minimum(x[b, s] @ w["gate"][e].astype(float) + w["gate_bias"][e], limit)
            up = np.clip(x[b, s] @ w["up"][e].astype(float) + w["up_bias"][e], -limit, limit)
            active = (up + 1) * gate / (1 + np.exp(-alpha * gate))
            out[b, s] += math.exp(logits[b, s, e]) / total * (active @ w["down"][e] + w["down_bias"][e])
    return out


def moe_config(k, limit, moe):
    blank = dict.fromkeys(TargetConfig.__dataclass_fields__)
    return TargetConfig(**blank | {"moe": moe, "experts": 5, "experts_per_token": k, "limit": limit, "alpha": 1.702})


@pytest.mark.parametrize("formulation", ["masked", "gathered"])
@pytest.mark.parametrize(("k", "limit"), [(1, 7.0), (2, 0.8), (4, 1.5)])
def test_experts_are_routed_clamped_and_mixed_as_the_equations_say(k, limit, formulation):
    names = ("router", "router_bias", "gate", "gate_bias", "up", "up_bias", "down", "down_bias")
    shapes = ((6, 5), (5,), (5, 6, 7), (5, 7), (5, 6, 7), (5, 7), (5, 7, 6), (5, 6))
    weights = dict(zip(names, arrays(3, *shapes), strict=True))
    (x,) = arrays(4, (2, 4, 6))
    moved = {name: engine.array(value) for name, value in weights.items()}
    got = engine.host(moe.moe(engine.array(x), moved, moe_config(k, limit, formulation), untapped))
    np.testing.assert_allclose(got, experts_by_loops(x, weights, k, limit, 1.702), **FLOAT32)


def test_the_clamp_bites_the_gate_above_only_and_the_up_projection_on_both_sides():
    gate = engine.array(np.array([9.0, -9.0, 1.0, 1.0], np.float32))
    up = engine.array(np.array([0.0, 0.0, 9.0, -9.0], np.float32))
    got = engine.host(moe.clamped_swiglu(gate, up, 7.0, 1.0))
    expected = [1 * 7 / (1 + math.exp(-7)), -9 / (1 + math.exp(9)), 8 / (1 + math.exp(-1)), -6 / (1 + math.exp(-1))]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_an_expert_that_was_not_chosen_may_return_anything():
    outputs = np.ones((3, 1, 1, 2), np.float32)
    outputs[1] = np.nan
    chosen, shares = np.array([[[2, 0]]]), np.array([[[0.75, 0.25]]], np.float32)
    mixed = moe.mix(engine.array(outputs), engine.array(chosen), engine.array(shares))
    np.testing.assert_array_equal(engine.host(mixed), [[[1, 1]]])


def test_top_k_descends_and_prefers_the_lower_id_on_a_tie():
    logits = engine.array(np.array([[[1.0, 3.0, 2.0, 3.0, 2.0]]], np.float32))
    assert engine.host(moe.top_k(logits, 4)).tolist() == [[[1, 3, 2, 4]]]


def test_gpt_oss_norm_rounds_after_the_weight_and_llama_norm_before_it():
    import ml_dtypes

    x, weight = (one.astype(ml_dtypes.bfloat16) for one in arrays(5, (1, 3, 64), (64,)))
    wide = x.astype(float)
    unit = wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + 1e-5)
    once = (unit * weight.astype(float)).astype(np.float32).astype(ml_dtypes.bfloat16)
    cast = unit.astype(np.float32).astype(ml_dtypes.bfloat16).astype(float)
    twice = (cast * weight.astype(float)).astype(np.float32).astype(ml_dtypes.bfloat16)
    moved = engine.array(x), engine.array(weight), 1e-5
    np.testing.assert_array_equal(engine.host(norm.gpt_oss_norm(*moved)), once)
    np.testing.assert_array_equal(engine.host(norm.llama_norm(*moved)), twice)
    assert (once != twice).any()


def emitted_by_a_loop(drafts, verified, ends, budget):
    emitted = []
    for draft, token in zip([*drafts, None], verified, strict=True):
        emitted.append(token)
        if token in ends or len(emitted) == budget or token != draft:
            return len(emitted)
    return len(emitted)


@given(st.data(), st.integers(1, 6), st.lists(st.integers(0, 2), max_size=2), st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_acceptance_stops_at_the_first_mismatch_the_first_end_token_and_the_budget(data, k, ends, budget):
    drafts = data.draw(st.lists(st.integers(0, 2), min_size=k, max_size=k))
    verified = data.draw(st.lists(st.integers(0, 2), min_size=k + 1, max_size=k + 1))
    moved = [engine.array(np.array([one], np.int64)) for one in (drafts, verified)]
    length = accept.emitted_length(*moved, engine.array(np.array(ends, np.int64)), engine.array(np.array([budget])))
    assert engine.host(length)[0] == emitted_by_a_loop(drafts, verified, ends, budget)


def test_each_sequence_writes_its_own_slots_and_rolls_back_to_its_own_length():
    held, new = arrays(6, (2, 7, 3, 4), (2, 2, 3, 4))
    written = engine.array(held)
    cache.write(written, engine.array(new), engine.array(np.array([[1, 5], [6, 0]])))
    expected = held.copy()
    expected[0, [1, 5]], expected[1, [6, 0]] = new
    np.testing.assert_array_equal(engine.host(written), expected)
    kept = engine.host(cache.rollback(written, engine.array(np.array([2, 7]))))
    np.testing.assert_array_equal(kept[0, :2], expected[0, :2])
    np.testing.assert_array_equal(kept[1], expected[1])
    assert not kept[0, 2:].any()


def test_a_window_of_rows_repeats_the_last_row_behind_the_end():
    x = engine.array(np.arange(8, dtype=np.float32).reshape(2, 4, 1))
    taken = engine.host(rows.window(x, engine.array(np.array([1, 3])), 3))
    assert taken[..., 0].tolist() == [[1, 2, 3], [7, 7, 7]]
