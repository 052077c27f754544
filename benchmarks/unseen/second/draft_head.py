"""Second set: faults of the draft's head and choice."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft heads", 2)


@fault(
    "d2t-shards-exchanged",
    "the second and third of four shards of d2t are exchanged",
    "drafter.draft_tokens",
    "draft",
    "d2t, draft ids 248 to 743",
    "drafts among draft ids 248 to 743",
)
def _(pipeline: Pipeline) -> None:
    def exchanged(value):
        return np.concatenate([value[:248], value[496:744], value[248:496], value[744:]])

    outer = pipeline.drafter.outer
    outer["d2t"] = moment(pipeline).changed(outer["d2t"], exchanged)


@fault(
    "shard-offset-of-256",
    "the greedy choice over four shards of 248 draft ids counts 256 ids for each shard before the winner's",
    "drafter.draft_tokens",
    "draft",
    "offset of the winning shard of draft ids",
    "drafts among draft ids from 248 on",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        return at.changed(clean(logits), lambda value: np.minimum(value + value // 248 * 8, 991))

    alter(pipeline, "drafter:greedy", change)


@fault(
    "drafts-a-row-early-behind-three",
    "behind a round that accepted 3 drafts the head reads its rows one early",
    "drafter.pre_head_hidden",
    "draft",
    "rows that the final norm takes",
    "drafts behind a round that accepted 3 drafts",
    "pass = draft and accepted = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, committed, k, record):
        return clean(x, committed - (at.accepted == 3), k, record)

    replaced(pipeline, pipeline.drafter, "choose", change)
