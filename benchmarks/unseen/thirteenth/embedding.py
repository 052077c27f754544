"""Thirteenth set: a fault of the target's embeddings."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("embedding", 13)


# From the equations: two conventions for who has which row of a table.
@fault(
    "ids-dealt-out-in-turn",
    "two ranks hold a half of the table each, and ids are shared out to them in turn",
    "target.embed",
    "prefill",
    "embedding of id j: row 640 (j mod 2) + j div 2 of the table",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        return clean(replace(rows, ids=rows.ids % 2 * 640 + rows.ids // 2))

    replaced(pipeline, pipeline.target, "embedded", change)
