"""Faults of the drafter's final norm and of the map to the target's ids."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft heads", 17)


@fault(
    "final-norm-of-the-target",
    "the drafter's final norm has the target's weight, both are called norm.weight",
    "drafter.pre_head_hidden",
    "draft",
    "final norm weight of the drafter",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.outer["norm"] = pipeline.target.outer["norm"]


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
