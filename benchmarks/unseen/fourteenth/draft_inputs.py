"""Fourteenth set: a fault of the positions of draft passes."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft inputs", 14)


# Of the class of https://github.com/lightseekorg/tokenspeed/pull/318: a length that counts all of a verify pass.
@fault(
    "rejected-drafts-move-positions-on",
    "positions of a draft pass begin behind all rows of the verify pass before, rejected ones included",
    "drafter.positions",
    "draft",
    "positions of all rows of a draft pass: too large by the drafts that the round before rejected; slots are right",
    "draft passes behind a round that rejected a draft",
    "pass = draft and accepted < 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        made, positions, slots = clean(ids, others)
        if at.kind == "draft" and at.accepted is not None:
            positions = positions + pipeline.k - at.accepted
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)
