"""Sums of tiles: where something stands in the whole."""

from __future__ import annotations

import pytest

from parity.metrics.sums import FIRST, Partial


@pytest.mark.parametrize(("tiles", "first"), [([0], 0), ([-1, 0], 12), ([3, 0], 3), ([-1, -1], -1)])
def test_the_first_mismatch_is_found_wherever_it_stands_in_its_tile(tiles, first):
    whole = Partial.empty(2 * len(tiles))
    for number, at in enumerate(tiles):
        tile = Partial.empty(2)
        tile.counts[FIRST] = at
        whole.add(tile, 2 * number, 0, 6)
    assert whole.counts[FIRST] == first
