"""Eleventh set: faults of the drafter's caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft caches", 11)


# Of the class of https://github.com/vllm-project/vllm/pull/47056: a slot that two sides divide by different sizes.
@fault(
    "pages-of-half-the-size",
    "the drafter's writes divide a slot by pages of 8 rows and its reads by pages of 16",
    "drafter.layers.0.attn_out",
    "prefill",
    "slots that every drafter layer writes: 16 (slot div 8) + slot mod 8, behind which half of each page stays empty",
    "rows at positions from 8 on",
    "position >= 8",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        real = slots < pipeline.drafter.trash
        return rows, np.where(real, slots // 8 * 16 + slots % 8, slots).astype(slots.dtype)

    writing(pipeline, "drafter", change)
