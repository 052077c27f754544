"""The kernels through the real NKIPy tracer, on XLA:CPU, against the numpy engine."""

from collections.abc import Callable
from functools import partial

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("nkipy", reason="NKIPy is not installed: docs/neuron.md has the command")
pytest.importorskip("jax", reason="jax is not installed: pip install 'parity-harness[nkipy]'")

from parity.device.engines import nkipy_engine, numpy_engine
from parity.device.kernels import accept, attention, cache, drafter_layer, embed, head, linear, moe, norm, rope, rows

RANDOM = np.random.default_rng(0)
TRACED = nkipy_engine.engine()


def wide(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def narrow(*shape):
    return wide(*shape).astype(ml_dtypes.bfloat16)


def ids(end, *shape):
    return RANDOM.integers(0, end, shape).astype(np.int32)


def mask(*shape):
    return RANDOM.random(shape) < 0.5


KERNELS: dict[str, tuple[Callable, tuple]] = {
    "matching": (accept.matching, (ids(2, 2, 4), ids(2, 2, 5))),
    "emitted_length": (
        accept.emitted_length,
        (ids(3, 2, 4), ids(3, 2, 5), np.array([1, 2], np.int32), np.array([3, 5], np.int32)),
    ),
    "visible": (partial(attention.visible, keys=16, window=None), (ids(16, 2, 6),)),
    "visible, window": (partial(attention.visible, keys=16, window=5), (ids(16, 2, 6),)),
    "attend": (
        attention.attend,
        (narrow(1, 6, 4, 32), narrow(1, 16, 2, 32), narrow(1, 16, 2, 32), mask(1, 6, 16), narrow(4)),
    ),
    "attend, no sinks": (
        attention.attend,
        (narrow(1, 6, 4, 32), narrow(1, 16, 2, 32), narrow(1, 16, 2, 32), mask(1, 6, 16)),
    ),
    "write": (cache.write, (narrow(1, 17, 2, 32), narrow(1, 6, 2, 32), RANDOM.permutation(17)[None, :6])),
    "write, two sequences": (
        cache.write,
        (narrow(2, 17, 2, 32), narrow(2, 6, 2, 32), np.stack([RANDOM.permutation(17)[:6] for _ in range(2)])),
    ),
    "rollback": (cache.rollback, (narrow(2, 17, 2, 32), np.array([5, 16], np.int32))),
    "fuse": (drafter_layer.fuse, (narrow(2, 8, 96), narrow(1, 1, 96), np.array([3, 8], np.int32), narrow(96, 64))),
    "embed": (embed.embed, (ids(100, 1, 6), narrow(100, 64))),
    "greedy": (head.greedy, (narrow(1, 6, 3000),)),
    "greedy, all tied": (head.greedy, (np.zeros((1, 6, 3000), ml_dtypes.bfloat16),)),
    "to_target_ids": (head.to_target_ids, (ids(50, 1, 4), ids(70, 50))),
    "linear": (linear.linear, (narrow(1, 6, 64), narrow(64, 96))),
    "linear, bias": (linear.linear, (narrow(1, 6, 64), narrow(64, 96), narrow(96))),
    "top_k": (partial(moe.top_k, k=4), (narrow(1, 6, 32),)),
    "top_k, ties": (partial(moe.top_k, k=4), (ids(3, 1, 6, 32).astype(ml_dtypes.bfloat16),)),
    "clamped_swiglu": (
        partial(moe.clamped_swiglu, limit=7.0, alpha=1.702),
        (8 * narrow(4, 6, 32), 8 * narrow(4, 6, 32)),
    ),
    "mix": (moe.mix, (wide(8, 1, 6, 32), ids(8, 1, 6, 4), wide(1, 6, 4))),
    "gpt_oss_norm": (partial(norm.gpt_oss_norm, eps=1e-5), (narrow(1, 6, 64), narrow(64))),
    "llama_norm": (partial(norm.llama_norm, eps=1e-5), (narrow(1, 6, 64), narrow(64))),
    "rotate": (rope.rotate, (narrow(1, 6, 4, 32), wide(1, 6, 16), wide(1, 6, 16))),
    "window": (partial(rows.window, width=5), (narrow(2, 8, 32), np.array([5, 1], np.int32))),
}


def outcome(engine, kernel, arrays, traced):
    """What a kernel returns, and what it leaves in its arguments."""

    def whole(given):
        return kernel(*given)

    moved = [engine.array(one) for one in arrays]
    made = engine.run(whole, (tuple(moved),)) if traced else kernel(*moved)
    return [engine.host(one) for one in ([made] if made is not None else []) + moved]


@pytest.mark.parametrize("name", KERNELS)
def test_a_traced_kernel_gives_the_numpy_engines_bits(name):
    kernel, arrays = KERNELS[name]
    expected, found = outcome(numpy_engine, kernel, arrays, False), outcome(TRACED, kernel, arrays, True)
    assert [one.dtype for one in found] == [one.dtype for one in expected]
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(left.astype(np.float64), right.astype(np.float64))


def test_another_kernel_gives_other_bits():
    arrays = KERNELS["rotate"][1]
    swapped = outcome(TRACED, lambda x, cos, sin: rope.rotate(x, sin, cos), arrays, True)
    assert (swapped[0] != outcome(numpy_engine, rope.rotate, arrays, False)[0]).any()


def test_two_arguments_of_one_name_are_refused():
    nested = {"a_b": TRACED.array(wide(2)), "a": {"b": TRACED.array(wide(2))}}
    with pytest.raises(ValueError, match="two arguments have one name"):
        TRACED.run(lambda x: x["a_b"] - x["a"]["b"], (nested,))


def test_an_integer_beside_an_array_index_is_still_dropped_by_nkipy():
    """Why `cache.write` goes one sequence at a time; without this limit it need not."""

    def write(held, new, slots):
        held[1, slots] = new

    held, new = np.zeros((2, 5, 3), np.float32), np.ones((2, 2, 3), np.float32)
    array = TRACED.array(held)
    TRACED.run(write, (array, TRACED.array(new), TRACED.array(np.array([0, 3], np.int32))))
    assert TRACED.host(array)[0].any(), "row 0 was not asked for"


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_nkipys_own_topk_runs_off_hardware(dtype):
    from nkipy.core.tensor_apis import topk

    x = RANDOM.integers(0, 5, (2, 3, 16)).astype(dtype)
    values, places = TRACED.run(lambda x: topk(x, 4, axis=-1), (TRACED.array(x),))
    expected = np.argsort(-x.astype(np.float32), axis=-1, kind="stable")[..., :4]
    np.testing.assert_array_equal(np.asarray(places), expected)
    np.testing.assert_array_equal(np.asarray(values), np.take_along_axis(x, expected, axis=-1))
