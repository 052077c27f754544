"""Faults of the drafter's rows: fc, masked rows, ids, embeddings and slots."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("drafter inputs", 22)


@fault(
    "fc-in-four-bits",
    "fc is loaded in int4, with one scale for 32 inputs of a column",
    "drafter.fc_out",
    "prefill",
    "weight of fc",
)
def _(pipeline: Pipeline) -> None:
    def narrow(value):
        groups = value.reshape(-1, 32, value.shape[1])
        scale = np.abs(groups).max(axis=1, keepdims=True) / 7
        return (np.round(groups / scale) * scale).reshape(value.shape)

    edit(pipeline.drafter, "fc", narrow)


@fault(
    "mask-hidden-parts-reversed",
    "the learnt hidden of masked rows holds its three parts in reversed order",
    "drafter.fc_out",
    "draft",
    "mask_hidden, parts of the first and the third tap",
)
def _(pipeline: Pipeline) -> None:
    def change(value):
        return value.reshape(1, 1, 3, -1)[:, :, ::-1].reshape(1, 1, -1)

    rewritten(pipeline, pipeline.drafter.outer, "mask_hidden", change)


@fault(
    "placeholder-embedding-zero",
    "the placeholder is taken for a padding token, whose embedding is zero",
    "drafter.layers.0.attn_out",
    "draft",
    "the drafter's embedding of token 1275",
    "masked rows, whose token is the placeholder",
)
def _(pipeline: Pipeline) -> None:
    def cleared(value):
        value[pipeline.drafter.config.placeholder] = 0
        return value

    edit(pipeline.drafter, "embed", cleared)


@fault(
    "fifth-id-not-copied",
    "K ids of the last round are copied to the drafter where K + 1 can come out: the last stays zero",
    "drafter.input_ids",
    "draft",
    "id of the fifth committed row",
    "the fifth committed row of drafts behind a round that accepted all 4 drafts",
    "pass = draft and accepted = 4 and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        if at.kind == "draft" and len(ids) > 4:
            ids = np.where(np.arange(len(ids)) < 4, ids, 0)
        return clean(ids, others)

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "slot-of-page-before",
    "where a draft's row begins a page of 16, its slot is taken from the page before",
    "drafter.slots",
    "draft",
    "slots of rows at the beginning of a page: 16 too small",
    "rows of draft passes at positions that are multiples of 16",
    "pass = draft and position % 16 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, positions, slots = clean(ids, others)
        return ids, positions, slots - 16 * ((positions % 16 == 0) & (at.kind == "draft"))

    replaced(pipeline, pipeline.drafter, "layout", change)
