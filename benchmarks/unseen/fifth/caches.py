"""Fifth set: a fault of the caches."""

from __future__ import annotations

from benchmarks.unseen.moments import writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 5)


@fault(
    "values-written-across",
    "verify passes write layer 3's values with the groups inside the columns",
    "target.layers.3.attn_out",
    "verify",
    "order of a row in layer 3's cache of values",
    "verify passes, layer 3",
    "pass = verify and layer = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if part == "v" and at.layer == 3 and at.kind == "verify":
            rows = rows.swapaxes(2, 3).reshape(rows.shape)
        return rows, slots

    writing(pipeline, "target", change)
