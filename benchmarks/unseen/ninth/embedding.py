"""Ninth set: faults of embeddings, the target's and the drafter's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("embedding", 9)


# From the equations: a table in eight bits beside a model in four.
@fault(
    "table-in-eight-bits",
    "the target's embeddings are kept in integers of eight bits with one scale a row",
    "target.embed",
    "prefill",
    "the target's embedding table: each row in steps of 1/127 of its largest entry",
)
def _(pipeline: Pipeline) -> None:
    def rounded(table):
        step = np.abs(table).max(axis=-1, keepdims=True) / 127
        return np.round(table / step) * step

    rewritten(pipeline, pipeline.target.outer, "embed", rounded)


# From the equations: two ranks, and the first id of the second is neither's.
@fault(
    "first-id-of-the-second-rank",
    "the table lies on two ranks of 640 ids, and the second one takes ids above 640 for its own, not 640",
    "target.embed",
    "prefill",
    "the embedding of token 640: zero, as neither rank adds it",
    "rows whose id is 640",
)
def _(pipeline: Pipeline) -> None:
    def lose(table):
        table[640] = 0
        return table

    rewritten(pipeline, pipeline.target.outer, "embed", lose)


# From the equations: a row that is not a multiple of what is copied at a time.
@fault(
    "tail-of-the-drafter-embedding",
    "the drafter's embeddings are gathered 88 columns wide, a multiple of 8 that the width of 96 was taken for",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's embeddings, columns 88 to 95: zero",
)
def _(pipeline: Pipeline) -> None:
    def cut(table):
        table[:, 88:] = 0
        return table

    rewritten(pipeline, pipeline.drafter.outer, "embed", cut)


# Of the class of https://github.com/local-inference-lab/vllm/pull/667: two writers, and a graph of one's buffer.
@fault(
    "masked-ids-two-rounds-old",
    "ids of draft passes lie in two buffers that take turns, and the placeholders are written to the first one alone",
    "drafter.layers.0.attn_out",
    "draft",
    "embeddings of masked rows: of the id that the same row of the pass had two rounds before, 0 behind its end",
    "masked rows of draft passes of odd rounds from the third on",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, rows):
        if at.kind != "draft":
            return clean(rows)
        held[at.round], ids = rows.ids, rows.ids.copy()
        if at.round % 2 and at.round > 2:
            masked = slice(at.committed, at.committed + at.masked)
            ids[0, masked] = held[at.round - 2][0, masked]
        return clean(replace(rows, ids=ids))

    replaced(pipeline, pipeline.drafter, "embedded", change)
