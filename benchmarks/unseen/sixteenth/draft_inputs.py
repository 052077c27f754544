"""Faults of what the drafter's rows are made of: ids, learnt hidden, fusion."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("taps and fuse", 16)
IDS = "drafter.input_ids"
PAD, CHUNK = 1265, 64


@fault(
    "placeholder-is-the-pad-id",
    "masked rows have the tokenizer's pad id, ptd_token_id is not read",
    IDS,
    "draft",
    "ids of masked rows, the placeholder",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, *rest = clean(ids, others)
        if others:
            ids[-others:] = PAD
        return ids, *rest

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "chunk-end-takes-the-last-id",
    "the last row of each chunk of 64 prefill rows has the prompt's last id for its next token",
    IDS,
    "prefill",
    "id of the last row of a chunk",
    "prefill rows whose position is 63 behind a multiple of 64",
    "pass = prefill and position % 64 = 63",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, positions, slots = clean(ids, others)
        if at.kind == "prefill":
            ids[positions % CHUNK == CHUNK - 1] = ids[-1]
        return ids, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "mask-hidden-first-third-thrice",
    "the learnt mask hidden was loaded as one tap wide and repeated for all three",
    "drafter.fc_out",
    "draft",
    "mask_hidden, second and third tap",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "mask_hidden", lambda value: np.concatenate([value[..., :96]] * 3, axis=-1))


@fault(
    "fc-in-int8",
    "the fc weight is kept in int8 with one scale for the tensor",
    "drafter.fc_out",
    "prefill",
    "fc weight, rounded to int8",
)
def _(pipeline: Pipeline) -> None:
    def narrow(value):
        step = np.abs(value).max() / 127
        return np.round(value / step) * step

    edit(pipeline.drafter, "fc", narrow)
