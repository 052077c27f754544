"""Faults of the tokens that the drafter runs over, and of their embeddings."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("drafter tokens", 24)


@fault(
    "drafter-embedding-gather-row-pitch-short",
    "an embedding's columns from 64 on are those of the token id behind it",
    "drafter.layers.0.attn_out",
    "prefill",
    "drafter's embeddings, columns 64 to 95",
)
def _(pipeline: Pipeline) -> None:
    def pitched(table):
        table[:-1, 64:] = table[1:, 64:].copy()
        return table

    edit(pipeline.drafter, "embed", pitched)


@fault(
    "placeholder-embedding-row-zero-as-padding",
    "the drafter's embedding of the placeholder is zero, as that of a padding id",
    "drafter.layers.0.attn_out",
    "draft",
    "drafter's embedding of the placeholder",
    "rows of the placeholder, the masked ones",
)
def _(pipeline: Pipeline) -> None:
    def zeroed(table):
        table[pipeline.drafter.config.placeholder] = 0
        return table

    edit(pipeline.drafter, "embed", zeroed)


@fault(
    "rejected-draft-refed-behind-no-acceptance",
    "behind a round that accepted no draft the drafter runs over the rejected first draft, not over its correction",
    "drafter.input_ids",
    "draft",
    "id of the committed row",
    "the committed row of drafts behind a round that accepted none",
    "pass = draft and accepted = 0 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    kept: list[np.ndarray] = []

    def commit(at, clean, drafts, *rest):
        kept[:] = [np.asarray(drafts)]
        return clean(drafts, *rest)

    def layout(at, clean, ids, others):
        if at.kind == "draft" and at.accepted == 0 and len(kept[0]):
            ids = np.array([kept[0][0], *ids[1:]])
        return clean(ids, others)

    replaced(pipeline, pipeline, "commit", commit)
    replaced(pipeline, pipeline.drafter, "layout", layout)
