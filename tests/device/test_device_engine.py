"""The numpy engine computes in float32 and rounds once to the declared dtype."""

import ml_dtypes
import numpy as np
import pytest

from parity.device.engines import numpy_engine as engine

BF16 = ml_dtypes.bfloat16


def bf16(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(BF16)


def test_a_product_of_bfloat16_matrices_is_the_float32_product_rounded_once():
    a, b = bf16(5, 70), bf16(70, 9, seed=1)
    product = np.matmul(engine.array(a), engine.array(b))
    assert product.dtype == BF16
    expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(BF16)
    np.testing.assert_array_equal(engine.host(product), expected)


def test_a_sum_of_ones_does_not_saturate_at_256():
    total = np.sum(engine.array(np.ones((2, 4096), BF16)), axis=-1)
    assert total.dtype == BF16
    np.testing.assert_array_equal(engine.host(total).astype(np.float32), [4096, 4096])


def test_every_elementwise_operation_rounds_once():
    a, b, c = (engine.array(bf16(300, seed=seed)) for seed in range(3))
    a32, b32, c32 = (engine.host(one).astype(np.float32) for one in (a, b, c))
    expected = ((a32 * b32).astype(BF16).astype(np.float32) + c32).astype(BF16)
    np.testing.assert_array_equal(engine.host(a * b + c), expected)


def test_rounding_is_to_nearest_even():
    halfway = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    rounded = engine.host(engine.array(halfway).astype(BF16)).astype(np.float32)
    np.testing.assert_array_equal(rounded, [1, 1 + 2 * 2**-7])


def test_python_scalars_follow_the_array_and_float32_wins_over_bfloat16():
    half, single = engine.array(bf16(3)), engine.array(np.ones(3, np.float32))
    assert (half * 0.3).dtype == BF16
    assert (half + single).dtype == np.float32
    assert np.where(half > 0.0, half, 0.3).dtype == BF16
    assert engine.host(np.where(half > 9.0, half, 0.3))[0] == BF16(0.3)


def test_integers_are_narrowed_to_32_bits_and_come_back_as_64():
    ids = engine.array(np.array([[3, 1]]))
    assert ids.dtype == np.int32
    assert np.cumsum(np.where(ids > 1, 1, 0), axis=1).dtype == np.int32
    assert np.argmax(ids, axis=-1).dtype == np.int32
    assert engine.host(ids).dtype == np.int64


def test_a_cast_to_float32_keeps_the_values_and_the_way_back_is_exact():
    values = bf16(50)
    wide = engine.array(values).astype(np.float32)
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(engine.host(wide.astype(BF16)), values)


def test_host_arrays_and_engine_arrays_never_share_memory():
    source = np.zeros(4, np.float32)
    held = engine.array(source)
    shown = engine.host(held)
    held[1] = 5.0
    assert source.tolist() == shown.tolist() == [0, 0, 0, 0]


def test_overflow_is_an_infinity_and_no_warning():
    assert np.isinf(engine.host(np.exp(engine.array(np.array([1e4], np.float32)))))[0]


def test_a_function_outside_the_dialect_is_refused():
    ones = engine.array(np.ones((2, 2), np.float32))
    with pytest.raises(NotImplementedError, match=r"numpy\.linalg|outside the dialect"):
        np.triu(ones)
    with pytest.raises(NotImplementedError, match="outside the dialect"):
        np.add.reduce(ones)
