"""Masks whose edges lie at whole pages of keys, or are those of a tile of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parity.references.products.attention.masks import of_masks
from parity.references.products.attention.operands import Pass

CACHED, ROWS, WINDOW = 36, 8, 20
KEYS = CACHED + ROWS
OWN = CACHED + torch.arange(ROWS)[:, None]
PLACES = torch.arange(KEYS)
OLDEST = OWN - WINDOW + 1
SEEN = (PLACES <= OWN) & (PLACES >= OLDEST)
TILE = torch.arange(ROWS) // 4 * 4


def under(says):
    operands = torch.zeros(2, ROWS, 4), torch.zeros(1, KEYS, 4), torch.zeros(1, KEYS, 4)
    return dict(of_masks())[says](Pass(*operands, seen=SEEN, sinks=None)).seen


DUE = {
    "the whole page of 16 of a row's oldest key is seen": (PLACES <= OWN) & (PLACES >= OLDEST // 16 * 16),
    "a row sees from its oldest key's next page of 8 on": SEEN & (PLACES >= (OLDEST + 7) // 8 * 8),
    "keys to the end of the row's own page of 8 are seen": (PLACES >= OLDEST) & (PLACES < OWN // 8 * 8 + 8),
    "a row sees as far back as the first row of its tile of 4 in the pass": (PLACES <= OWN) & (OLDEST[TILE] <= PLACES),
    "a row sees no further back than the last row of its tile of 4 in the pass": SEEN & (OLDEST[TILE + 3] <= PLACES),
    "a row sees as far as the last row of its tile of 4 in the pass": (PLACES >= OLDEST) & (OWN[TILE + 3] >= PLACES),
}


@pytest.mark.parametrize("says", DUE)
def test_an_edge_lies_where_it_is_said_to(says):
    assert np.array_equal(under(says), DUE[says]) and not np.array_equal(SEEN, DUE[says])
