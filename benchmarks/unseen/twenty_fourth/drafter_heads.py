"""Faults of the drafter's head, of the choice of drafts and of their way to the target's vocabulary."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("draft head", 24)


@fault(
    "drafter-final-norm-weight-from-target",
    "the drafter's final norm has the weight of the target's, which has the same name",
    "drafter.pre_head_hidden",
    "draft",
    "weight of the drafter's final norm",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.outer["norm"] = pipeline.target.outer["norm"]


@fault(
    "draft-head-middle-quarters-gathered-swapped",
    "the second and the third quarter of the draft vocabulary's head columns are in each other's place",
    "drafter.logits",
    "draft",
    "columns 248 to 743 of the drafter's head",
)
def _(pipeline: Pipeline) -> None:
    def swapped(value):
        first, second, third, fourth = np.split(value, 4, axis=1)
        return np.concatenate([first, third, second, fourth], axis=1)

    edit(pipeline.drafter, "head", swapped)


@fault(
    "draft-index-rounded-through-bfloat16",
    "the place of the largest logit comes out in bfloat16, which is exact up to 256",
    "drafter.draft_tokens",
    "draft",
    "draft ids in front of d2t",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        ids = clean(logits)
        rounded = at.host(ids).astype(bfloat16).astype(np.int32)
        return at.array(np.minimum(rounded, logits.shape[-1] - 1), ids)

    alter(pipeline, "drafter:greedy", change)


@fault(
    "vocabulary-offsets-wrapped-in-int8",
    "the offsets of d2t are kept in eight bits: those above 127 wrap",
    "drafter.draft_tokens",
    "draft",
    "offsets of d2t above 127",
    "drafts whose offset in d2t is above 127",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, offsets):
        made = clean(ids, at.array(at.host(offsets).astype(np.int8).astype(np.int32), offsets))
        return at.changed(made, lambda value: np.maximum(value, 0))

    alter(pipeline, "drafter:to_target_ids", change)
