"""Faults of the target's rotation, scores, heads and output projection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import tables
from parity.device.pipeline import Pipeline

fault = Part("target attention", 16)
ATTEND = "kernels.target_layer:attend"
DIM = 32
"""Of a head."""


@fault(
    "yarn-bounds-rounded",
    "the bounds of YaRN's ramp are rounded outwards although the config says truncate false",
    "target.layers.0.q",
    "prefill",
    "rotary frequencies of the target, bounds of the YaRN ramp",
)
def _(pipeline: Pipeline) -> None:
    model, at = pipeline.target, moment(pipeline)
    made = tables(replace(model.rope, truncate=True), DIM, model.positions)
    model.tables = tuple(at.array(value, held) for value, held in zip(made, model.tables, strict=True))


@fault(
    "magnitude-in-score-scale-too",
    "scores are multiplied by the square of YaRN's magnitude, which cos and sin carry already",
    "target.layers.0.attn_out",
    "prefill",
    "score scale of every layer",
)
def _(pipeline: Pipeline) -> None:
    factor = pipeline.target.rope.magnitude**2

    def change(at, clean, q, *rest):
        return clean(at.changed(q, lambda value: value * factor), *rest)

    alter(pipeline, ATTEND, change)


@fault(
    "heads-strided-over-groups",
    "query head h reads kv group h % 4, its own is h // 2",
    "target.layers.0.attn_out",
    "prefill",
    "kv group of the query heads in every layer",
)
def _(pipeline: Pipeline) -> None:
    order = np.arange(8).reshape(2, 4).T.reshape(-1)  # head h at a place that belongs to group h % 4
    back = np.argsort(order)

    def change(at, clean, q, keys, values, seen, sinks):
        q = at.changed(q, lambda value: value[:, :, order])
        made = clean(q, keys, values, seen, at.changed(sinks, lambda value: value[order]))
        return at.changed(made, lambda value: value.reshape(*value.shape[:2], 8, DIM)[:, :, back].reshape(value.shape))

    alter(pipeline, ATTEND, change)


@fault(
    "prefill-scores-in-bfloat16",
    "the prefill kernel rounds scores to bfloat16 before the softmax",
    "target.layers.0.attn_out",
    "prefill",
    "scores of every layer, rounded to bfloat16",
    "prefill passes",
    "pass = prefill",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        there = sink is not None and at.kind == "prefill"
        return clean(at.changed(x, lambda value: value.astype(bfloat16).astype(np.float32)) if there else x, sink)

    alter(pipeline, "kernels.attention:softmax", change)


@fault(
    "o-weight-not-swapped-in",
    "the first verify pass behind a prefill runs layer 3's o projection with layer 2's weight",
    "target.layers.3.attn_out",
    "verify",
    "o weight of layer 3",
    "the verify pass of round 1, layer 3",
    "pass = verify and round = 1 and layer = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, *rest):
        layers = pipeline.target.layers
        late = at.kind == "verify" and at.round == 1 and weight is layers[3]["o"]
        return clean(x, layers[2]["o"] if late else weight, *rest)

    alter(pipeline, "kernels.target_layer:row_parallel", change)
