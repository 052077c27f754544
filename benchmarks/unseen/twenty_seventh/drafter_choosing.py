"""Faults of the draft head, the choice of drafts and their way into the target's vocabulary."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("draft head", 27)


@fault(
    "draft-head-int8-per-tensor",
    "the draft head is quantised to int8 with one scale for the whole matrix",
    "drafter.logits",
    "draft",
    "weight of the draft head",
)
def _(pipeline: Pipeline) -> None:
    def quantised(value):
        scale = np.abs(value).max() / 127
        return np.round(value / scale) * scale

    edit(pipeline.drafter, "head", quantised)


@fault(
    "draft-argmax-second-tile-unshifted",
    "the choice over tiles of 512 draft ids gives the place in the tile where the best lies in the second",
    "drafter.draft_tokens",
    "draft",
    "offset of the second tile of draft ids",
    "drafts whose best draft id is 512 or more",
)
def _(pipeline: Pipeline) -> None:
    alter(pipeline, "drafter:greedy", lambda at, clean, logits: at.changed(clean(logits), lambda ids: ids % 512))


@fault(
    "draft-offsets-kept-in-int8",
    "d2t is loaded as int8: offsets from 128 on wrap around",
    "drafter.draft_tokens",
    "draft",
    "d2t entries of 128 and more",
    "drafts whose draft id has an offset of 128 or more",
)
def _(pipeline: Pipeline) -> None:
    rewritten(pipeline, pipeline.drafter.outer, "d2t", lambda value: value.astype(np.int8).astype(np.int32))
