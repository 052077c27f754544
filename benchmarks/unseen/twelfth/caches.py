"""Twelfth set: a fault of the target's caches."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 12)


# From the equations: kept rows on their way from a pass' buffer to their place.
@fault(
    "kept-rows-staged-in-eight-bits",
    "a commit moves the rows that it keeps through a buffer of float8",
    "kv.target.0.k",
    "commit",
    "keys and values of a round's kept rows in every target layer: three bits behind the point",
    "rows that a commit keeps, from the prompt's end on",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.target

    def change(at, clean, length):
        before = model.length
        clean(length)
        if at.kind != "commit":
            return

        def stage(rows):
            kept = slice(before, length)
            rows[:, kept] = rows[:, kept].astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
            return rows

        model.caches = [tuple(at.changed(one, stage) for one in pair) for pair in model.caches]

    replaced(pipeline, model, "rollback", change)
