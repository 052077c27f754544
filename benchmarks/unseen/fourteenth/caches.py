"""Fourteenth set: a fault of the target's caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 14)


# From the definition of XLA's DynamicUpdateSlice: a start is clamped, so that the update fits.
@fault(
    "start-clamped-to-fit-the-page",
    "a pass is written as one slice of a page of 8 slots, and a start that does not leave room for it is clamped",
    "target.layers.0.attn_out",
    "verify",
    "slots that verify passes write in every target layer: earlier, so that all rows end with the page; keys and "
    "values of committed rows are overwritten",
    "verify passes whose rows cross a multiple of 8",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        count = int((slots < pipeline.target.trash).sum())
        first = int(slots[0, 0])
        if at.kind == "verify" and first % 8 + count > 8:
            slots[0, :count] = first // 8 * 8 + 8 - count + np.arange(count)
        return rows, slots

    writing(pipeline, "target", change)
