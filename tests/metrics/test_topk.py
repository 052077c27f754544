"""Top-k overlap against sorting, ties and NaN included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.metrics import topk_overlap
from tests.metrics.strategies import pairs


def best(row, k):
    """The k largest, ties to the lowest index, NaN last."""
    values = [-np.inf if np.isnan(v) else float(v) for v in row]
    return set(sorted(range(len(values)), key=lambda i: (-values[i], i))[:k])


logits = st.tuples(st.integers(0, 3), st.integers(1, 40))


@settings(max_examples=100, deadline=None)
@given(pairs(shapes=logits))
def test_overlap_matches_sorting_row_by_row(pair):
    golden, device = pair
    found = topk_overlap(golden, device, ks=(1, 5, 50))
    for k, shares in found.items():
        places = min(k, golden.shape[-1])
        for row, share in enumerate(shares):
            assert share == len(best(golden[row], places) & best(device[row], places)) / places


def test_constant_logits_overlap_only_by_position():
    golden = np.arange(100.0)[None]
    assert topk_overlap(golden, np.zeros((1, 100)), ks=(10,))[10] == 0


def test_a_single_row_gives_a_scalar_and_nonsense_is_refused():
    assert topk_overlap(np.arange(4.0), np.arange(4.0), ks=(2,))[2].shape == ()
    with pytest.raises(ValueError, match="top-k"):
        topk_overlap(np.ones(3), np.ones(3), ks=(0,))
