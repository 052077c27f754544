"""Second set: faults of the draft's head and choice."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

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
    "draft-argmax-in-eighths",
    "the draft's greedy choice compares logits rounded to fp8 (e4m3)",
    "drafter.draft_tokens",
    "draft",
    "argmax over the draft logits",
    "drafts with another logit of a lower id that rounds to the same number",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        return clean(at.changed(logits, lambda value: value.astype(float8_e4m3fn).astype(np.float32)))

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
