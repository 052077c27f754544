"""Faults of the drafter's final norm and of the map to the target's ids."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft heads", 17)


@fault(
    "final-norm-adds-the-residual-again",
    "the kernel that adds the residual and norms takes the last layer's input again, its output holds it already",
    "drafter.pre_head_hidden",
    "draft",
    "input of the final norm, input of layer 3 added once more",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def remember(at, clean, x, *rest):
        if at.layer == 3:
            held["x"] = x
        return clean(x, *rest)

    alter(pipeline, "drafter:plain_layer", remember)
    replaced(pipeline, pipeline.drafter, "choose", lambda at, clean, x, *rest: clean(x + held["x"], *rest))


@fault(
    "d2t-in-signed-bytes",
    "offsets of the draft ids are kept in signed bytes, those from 128 on wrap",
    "drafter.draft_tokens",
    "draft",
    "d2t, offsets from 128 on",
    "drafts whose offset is 128 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, d2t):
        return clean(ids, at.changed(d2t, lambda value: value.astype(np.int8).astype(value.dtype)))

    alter(pipeline, "drafter:to_target_ids", change)
