"""Tenth set: faults of embeddings, the target's and the drafter's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("embedding", 10)


# From the equations: an index that has moved on before the last row of a tile is read.
@fault(
    "tile-ends-with-the-next-row",
    "embeddings are gathered 32 rows at a time, and the last one of a tile by the first id of the next tile",
    "target.embed",
    "prefill",
    "embedding of the last row of a tile of 32: that of the row behind it",
    "prefill rows whose number is 31 modulo 32",
    "pass = prefill and position % 32 = 31",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        if at.kind != "prefill":
            return clean(rows)
        ids, ends = rows.ids.copy(), np.arange(31, rows.count - 1, 32)
        ids[0, ends] = ids[0, ends + 1]
        return clean(replace(rows, ids=ids))

    replaced(pipeline, pipeline.target, "embedded", change)


# From the equations: a drafter whose table is as large as its target's, and a server that shares the two.
@fault(
    "drafter-shares-the-embedding",
    "a server takes the drafter's embedding for the target's and loads one of them, as both have the same shape",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's embedding table: the target's",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.outer["embed"] = pipeline.target.outer["embed"]
