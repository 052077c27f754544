"""Seventh set: a fault of the rounds."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("the loop", 7)


# After https://github.com/spiritbuun/buun-llama-cpp/issues/116
@fault(
    "positions-not-taken-back",
    "the positions that a captured graph turns by go on by the whole pass, and a rejection is seen a round late",
    "target.layers.0.q",
    "verify",
    "rotation of queries and keys in a verify pass: by as many positions too far as drafts were rejected before; mask "
    "and slots as they should be",
    "verify passes behind a round that rejected a draft",
    "pass = verify and accepted < 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        step = clean(rows)
        if at.kind != "verify" or at.accepted is None or at.accepted >= pipeline.k:
            return step
        ahead = clean(replace(rows, positions=rows.positions + pipeline.k - at.accepted))
        return replace(step, cos=ahead.cos, sin=ahead.sin)

    replaced(pipeline, pipeline.target, "step", change)
