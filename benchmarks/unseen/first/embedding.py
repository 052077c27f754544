"""Faults of the target's embeddings."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("embedding and head")
EMBED = "target:embed"


@fault(
    "added-tokens-without-embedding",
    "ids from 1264 on, the added tokens, have embeddings of zero",
    "target.embed",
    "prefill",
    "rows 1264 to 1279 of the embedding table",
    "rows with an id of 1264 or more",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "embed", lambda value: np.where(np.arange(1280)[:, None] >= 1264, 0.0, value))


@fault(
    "embedding-shard-off-by-one",
    "ids of the table's fourth of five shards read the row behind their own",
    "target.embed",
    "prefill",
    "rows 768 to 1023 of the embedding table",
    "rows with an id of 768 to 1023",
)
def _(pipeline: Pipeline) -> None:
    def shifted(value):
        value = value.copy()
        value[768:1024] = value[769:1025]
        return value

    edit(pipeline.target, "embed", shifted)


@fault(
    "embedding-columns-exchanged",
    "columns 17 and 81 of the embeddings are exchanged",
    "target.embed",
    "prefill",
    "columns 17 and 81 of the embedding table",
)
def _(pipeline: Pipeline) -> None:
    def exchanged(value):
        value = value.copy()
        value[:, [17, 81]] = value[:, [81, 17]]
        return value

    edit(pipeline.target, "embed", exchanged)


@fault(
    "first-embedding-doubled",
    "the embedding at position 0 counts twice",
    "target.embed",
    "prefill",
    "embedding of the first row",
    "the row at position 0",
    "position = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, table):
        def doubled(value):
            value[:, 0] *= 2
            return value

        made = clean(ids, table)
        return at.changed(made, doubled) if at.kind == "prefill" else made

    alter(pipeline, EMBED, change)


@fault(
    "last-draft-embedded-as-the-one-before",
    "the last verify row embeds the id of the row before",
    "target.embed",
    "verify",
    "embedding of the last verify row",
    "last row of verify passes",
    "pass = verify and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, table):
        def stale(value):
            value[:, -1] = value[:, -2]
            return value

        return clean(at.changed(ids, stale) if at.kind == "verify" and ids.shape[1] > 1 else ids, table)

    alter(pipeline, EMBED, change)
