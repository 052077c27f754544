"""Fifth set: a fault of the host loop."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("loop", 5)
PAD = 0


@fault(
    "drafts-behind-the-budget-cleared",
    "verify rows that the budget leaves no token for embed the pad id, 0, in the place of their draft",
    "target.embed",
    "verify",
    "ids of verify rows behind the budget",
    "verify rows behind as many as tokens are left",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        if at.kind == "verify":
            ids = rows.ids.copy()
            ids[:, pipeline.left :] = PAD
            rows = replace(rows, ids=ids)
        return clean(rows)

    replaced(pipeline, pipeline.target, "embedded", change)
