"""Tiles cover every element once, in order, and stay within their size."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.metrics.stream import cut


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 6), max_size=4).map(tuple), st.integers(0, 4), st.integers(1, 50))
def test_tiles_partition_the_pair(shape, leading, chunk):
    leading = min(leading, len(shape))
    rows, columns = prod(shape[:leading]), prod(shape[leading:])
    flat = np.arange(rows * columns).reshape(shape)
    seen = []
    for tile in cut(shape, leading, chunk):
        part = flat[tile.index].reshape(tile.shape)
        assert part.size <= chunk
        assert part.flat[0] == tile.row * columns + tile.column
        assert tile.shape[0] == 1 or tile.shape[1] == columns
        seen.extend(part.ravel())
    assert seen == list(range(flat.size))
