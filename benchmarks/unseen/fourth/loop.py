"""Fourth set: a fault of the host loop."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("loop", 4)


@fault(
    "drafter-fed-its-own-drafts",
    "the drafter is fed what it drafted: behind a rejection the rejected draft, not the target's own token",
    "drafter.input_ids",
    "draft",
    "id of the last committed row",
    "last committed row of draft passes behind a round that rejected a draft",
)
def _(pipeline: Pipeline) -> None:
    last = {}

    def accept(at, clean, drafts, *rest):
        last["drafts"] = drafts
        clean(drafts, *rest)

    def change(at, clean, ids, others):
        ids, *rest = clean(ids, others)
        if at.committed and at.accepted is not None and at.accepted < len(last["drafts"]):
            ids[at.committed - 1] = last["drafts"][at.accepted]
        return ids, *rest

    replaced(pipeline, pipeline, "_accept", accept)
    replaced(pipeline, pipeline.drafter, "layout", change)
