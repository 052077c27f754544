"""Twelfth set: a fault of the target's embeddings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("embedding", 12)


# From the equations: shards that are padded, and ids that are shared out by the padded size.
@fault(
    "ids-by-the-padded-shard",
    "three ranks have 427 rows of the table each, padded to 432, and an id's rank and row are found by 432",
    "target.embed",
    "prefill",
    "embedding of ids: from 432 on that of the id 5 before, from 864 on of the id 10 before; 427 to 431 and 859 to 863 "
    "have zeros",
    "rows whose id is 427 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        rank, row = np.divmod(rows.ids, 432)
        made = clean(replace(rows, ids=rank * 427 + np.minimum(row, 426)))
        return at.changed(made, lambda value: np.where((row < 427)[..., None], value, 0))

    replaced(pipeline, pipeline.target, "embedded", change)
