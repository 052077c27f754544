"""Exact tensors: how many elements differ, where first, and by how much."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.metrics import measure_exact

DTYPES = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64, np.bool_)


@st.composite
def pairs(draw):
    """Two integer arrays of one shape that mostly agree."""
    shape = draw(st.lists(st.integers(0, 6), max_size=3).map(tuple))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(DTYPES))
    golden = random.integers(0, 2, shape)
    device = np.where(random.random(shape) < 0.2, random.integers(0, 100, shape), golden)
    return np.asfortranarray(golden.astype(kinds[0])).reshape(shape), device.astype(kinds[1])


@settings(max_examples=150, deadline=None)
@given(pairs(), st.sampled_from((1, 3, 1 << 20)))
def test_mismatches_are_counted_and_the_first_located(pair, chunk):
    golden, device = pair
    metrics = measure_exact(golden, device, chunk=chunk)
    wide = golden.astype(object), device.astype(object)
    differs = np.array(wide[0] != wide[1], bool).reshape(golden.shape)
    assert metrics.mismatches == differs.sum()
    if metrics.mismatches:
        assert metrics.first == tuple(np.argwhere(differs)[0].tolist())
        assert (metrics.golden, metrics.device) == (int(golden[metrics.first]), int(device[metrics.first]))
        assert metrics.worst == max(abs(int(d) - int(g)) for g, d in zip(golden.flat, device.flat, strict=True))
    else:
        assert metrics.first is None


def test_the_ends_of_64_bits_do_not_overflow():
    golden, device = np.array([np.iinfo(np.int64).min]), np.array([np.iinfo(np.uint64).max])
    assert measure_exact(golden, device).worst == 2**64 - 1 + 2**63


def test_floats_and_unequal_shapes_are_refused():
    with pytest.raises(TypeError, match="device has dtype float64"):
        measure_exact(np.arange(3), np.ones(3))
    with pytest.raises(ValueError, match="shape"):
        measure_exact(np.arange(3), np.arange(4))
