"""Sixth set: a fault of the embedding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("embedding", 6)


# After https://github.com/huggingface/text-generation-inference/pull/1463
@fault(
    "special-tokens-clamped",
    "the table of embeddings ends at row 1263 for the lookup, and the special tokens behind it read that row",
    "target.embed",
    "prefill",
    "embeddings of the ids from 1264 on, which are the special tokens",
    "rows whose token id is 1264 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        return clean(replace(rows, ids=np.minimum(rows.ids, 1263)))

    replaced(pipeline, pipeline.target, "embedded", change)
