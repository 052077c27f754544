"""Faults of the choice of drafts and of their ids."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("draft heads")
DRAFTS = "drafter.draft_tokens"


@fault(
    "d2t-range-one-late",
    "draft ids 256 to 511 map to the target id behind their own",
    DRAFTS,
    "draft",
    "d2t, ids 256 to 511",
    "drafts among the draft ids 256 to 511",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "d2t", lambda value: value + ((np.arange(992) >= 256) & (np.arange(992) < 512)))


@fault(
    "last-draft-skips-first-tile",
    "the last draft is never one of the first 64 draft ids",
    DRAFTS,
    "draft",
    "argmax of the last draft",
    "last draft of a round, where the best id is below 64",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        def later(value):
            value[:, -1, :64] = -1e9
            return value

        return clean(at.changed(logits, later))

    alter(pipeline, "drafter:greedy", change)


@fault(
    "d2t-skipped-behind-rejection",
    "behind a round that accepted nothing draft ids are taken for target ids",
    DRAFTS,
    "draft",
    "map to target ids",
    "draft passes behind a round that accepted nothing",
    "pass = draft and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, d2t):
        return ids if at.accepted == 0 else clean(ids, d2t)

    alter(pipeline, "drafter:to_target_ids", change)
