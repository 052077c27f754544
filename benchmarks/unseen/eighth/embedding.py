"""Eighth set: a fault of the target's embedding."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("embedding", 8)


# From the equations: a gather that reads each row of the table once, and hands it to one row of the pass.
@fault(
    "repeated-ids-gathered-once",
    "ids are gathered in tiles of 32 rows, an id that a tile holds twice is read once, and its later rows stay zero",
    "target.embed",
    "prefill",
    "embedding of a row whose id is a repeated one: zero",
    "rows whose id an earlier row of the same tile of 32 rows of the pass has",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, table):
        given = at.host(ids)[0]
        first = [int(np.argmax(given[row // 32 * 32 :] == one)) + row // 32 * 32 for row, one in enumerate(given)]

        def clear(rows):
            rows[:, np.array(first) < np.arange(len(given))] = 0
            return rows

        return at.changed(clean(ids, table), clear)

    alter(pipeline, "target:embed", change)
