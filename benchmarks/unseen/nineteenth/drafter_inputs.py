"""Faults of the drafter's token ids and their embeddings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("drafter inputs", 19)
IDS = "drafter.input_ids"


@fault(
    "embedding-clipped-at-draft-vocabulary",
    "the drafter's embedding is as long as its draft vocabulary: ids behind it take the last row",
    "drafter.layers.0.attn_out",
    "prefill",
    "embeddings of token ids from 992 on, the placeholder among them",
    "rows whose token id is 992 or more: rare tokens, those of the chat template, masked rows",
)
def _(pipeline: Pipeline) -> None:
    last = pipeline.drafter.outer["head"].shape[1] - 1
    replaced(
        pipeline,
        pipeline.drafter,
        "embedded",
        lambda at, clean, rows: clean(replace(rows, ids=np.minimum(rows.ids, last))),
    )


@fault(
    "drafter-refed-its-own-draft",
    "behind a rejection the drafter runs over its rejected draft, not over the target's correction",
    IDS,
    "draft",
    "id of the last committed row",
    "the last committed row of a draft behind a round that rejected a draft",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def kept(at, clean, before, drafts, emitted):
        held["drafts"] = drafts
        return clean(before, drafts, emitted)

    def due(at, clean, text, emitted):
        ids = clean(text, emitted).copy()
        drafts = held.get("drafts", ())
        if at.accepted is not None and at.accepted < len(drafts):
            ids[-1] = drafts[at.accepted]
        return ids

    replaced(pipeline, pipeline.drafter, "kept", kept)
    replaced(pipeline, pipeline.drafter, "due", due)


@fault(
    "prefix-reuse-pairs-old-token",
    "the drafter's row of the last token that two prompts share still pairs it with the old prompt's next token",
    IDS,
    "prefill",
    "id of the last row of the prefix shared with the prompt before",
    "the last row of the prefix that a later prompt shares with the one before it",
    "prompt > 1 and pass = prefill",
)
def _(pipeline: Pipeline) -> None:
    before = []

    def change(at, clean, ids, others):
        made, positions, slots = clean(ids, others)
        if at.kind == "prefill":
            old, now = before[-1] if before else ids, ids
            count = min(len(old), len(now))
            other = np.flatnonzero(old[:count] != now[:count])
            before.append(ids.copy())
            if len(other):
                made = made.copy()
                made[other[0]] = old[other[0]]
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)
