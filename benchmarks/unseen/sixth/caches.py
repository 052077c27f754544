"""Sixth set: a fault of the caches."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 6)


# After https://github.com/sgl-project/sgl-flash-attn/pull/49
@fault(
    "verify-writes-eight-bits",
    "verify passes write keys and values through fp8_e4m3, prefills as they are",
    "target.layers.0.attn_out",
    "verify",
    "what the target's caches hold of the rows of verify passes: three bits behind the point",
    "rows that verify passes write",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "verify":
            rows = rows.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        return rows, slots

    writing(pipeline, "target", change)
