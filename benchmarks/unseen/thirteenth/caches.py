"""Thirteenth set: faults of the target's caches."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 13)


# From the equations: a token that came out is taken for one that ran.
@fault(
    "bonus-row-taken-for-cached",
    "the last emitted token counts as cached, and a verify pass writes the rows behind it alone",
    "target.layers.0.attn_out",
    "verify",
    "key and value of a verify pass' first row in every target layer: they stay zero",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "verify":
            slots[0, 0] = pipeline.target.trash
        return rows, slots

    writing(pipeline, "target", change)


# From the equations: what a cache is made of where nobody says so.
@fault(
    "caches-stay-in-bfloat16",
    "caches are made in the checkpoint's dtype, bfloat16, whatever the pass computes in",
    "target.layers.0.attn_out",
    "prefill",
    "keys and values of every target layer as they are cached: rounded to bfloat16",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        return rows.astype(ml_dtypes.bfloat16).astype(np.float32), slots

    writing(pipeline, "target", change)
