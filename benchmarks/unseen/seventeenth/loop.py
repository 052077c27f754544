"""Faults of the host loop: what drafts are compared with."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import moment, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("loop", 17)
LENGTH = "accept.length"


@fault(
    "drafts-compared-as-draft-ids",
    "drafts are compared with the target's tokens by their ids in the draft vocabulary",
    LENGTH,
    "commit",
    "comparison of drafts, ids before d2t",
)
def _(pipeline: Pipeline) -> None:
    offsets = moment(pipeline).host(pipeline.drafter.outer["d2t"])
    back = {int(to): own for own, to in enumerate(offsets + np.arange(len(offsets)))}

    def change(at, clean, drafts, verified):
        return clean(np.array([back.get(int(one), int(one)) for one in drafts], drafts.dtype), verified)

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "stale-drafts-in-even-rounds",
    "of two buffers of drafts even rounds compare the one that the round before filled",
    LENGTH,
    "commit",
    "comparison of drafts, those of the round before",
    "even rounds",
    "round % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, drafts, verified):
        before, held["drafts"] = held.get("drafts", drafts), drafts
        stale = at.round % 2 == 0 and len(before) == len(drafts)
        return clean(before if stale else drafts, verified)

    replaced(pipeline, pipeline, "accepted", change)
