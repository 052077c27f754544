"""Fourteenth set: a fault of the drafter's caches."""

from __future__ import annotations

from benchmarks.unseen.moments import writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft caches", 14)


# After https://github.com/xLLM-AI/xllm/pull/1944: a row for the token before, and no token before to put there.
@fault(
    "placeholder-row-over-the-row-before",
    "a draft pass has a row for the token before as well, which is padding where the round before accepted nothing, "
    "and is written all the same",
    "drafter.layers.0.attn_out",
    "draft",
    "key and value of the row in front of the pass in every drafter layer: those of a padding row, id 0 at position 0",
    "draft passes behind a round that accepted no draft",
    "pass = draft and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "draft" and at.accepted == 0:
            slots[0, at.committed + at.masked] = slots[0, 0] - 1
        return rows, slots

    writing(pipeline, "drafter", change)
