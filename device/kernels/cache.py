"""The static key and value caches: [B, P + 1, G, D] with slot p for position p.

The row behind the last position is the trash slot: padding rows write there, nobody reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.kernels.program import program


@program
def write(cache: Any, rows: Any, slots: Any) -> None:
    """Write rows [B, S, G, D] to slots [B, S] of the cache, in place."""
    if rows.shape[0] == 1:
        cache[:, slots[0]] = rows
        return
    # NKIPy's assignment takes one array among its indices and drops an integer beside it: one sequence at a time.
    for sequence in range(rows.shape[0]):
        one = slice(sequence, sequence + 1)
        held = cache[one]
        held[:, slots[sequence]] = rows[one]
        cache[one] = held


def rollback(cache: Any, lengths: Any) -> Any:
    """The cache with every row at or behind lengths [B] cleared, the trash slot included."""
    row = np.arange(cache.shape[1], dtype=np.int32)[None, :, None, None]
    return np.where(row < lengths[:, None, None, None], cache, 0.0)


@program
def rolled_back(lengths: Any, caches: Any) -> Any:
    """All (keys, values) of a model, rolled back to lengths [B]: new arrays, the old ones stay as they are."""
    return [tuple(rollback(one, lengths) for one in pair) for pair in caches]
