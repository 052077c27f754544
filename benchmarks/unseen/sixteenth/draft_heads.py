"""Faults of the draft head and of the map to the target's ids."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("draft heads", 16)
SHARD = 496
"""Ids of half the draft vocabulary."""


@fault(
    "vocabulary-shards-exchanged",
    "the two halves of the draft head are gathered in the wrong order",
    "drafter.logits",
    "draft",
    "draft head, order of its two halves",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "head", lambda value: np.concatenate([value[:, SHARD:], value[:, :SHARD]], axis=1))


@fault(
    "second-shard-without-offset",
    "a draft found in the second half of the draft vocabulary keeps its number in that half",
    "drafter.draft_tokens",
    "draft",
    "argmax over two halves of the draft ids, offset of the second",
    "drafts whose best draft id is 496 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        return at.changed(clean(logits), lambda value: np.where(value >= SHARD, value - SHARD, value))

    alter(pipeline, "drafter:greedy", change)
