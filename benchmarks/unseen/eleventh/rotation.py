"""Eleventh set: faults of the target's rotation."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("rotation", 11)
ROTATE = "kernels.target_layer:rotate"


# After https://github.com/paiml/aprender/pull/2079: a flat grid, and a kernel that takes a head a block.
@fault(
    "only-the-first-head-turns",
    "for few rows the rotation's grid has one block, which turns head 0; the other heads of its output are not written",
    "target.layers.0.q",
    "verify",
    "queries of heads 1 to 7 in verify passes, in every target layer: zero",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        made = clean(x, cos, sin)
        if at.kind != "verify" or x.shape[2] != pipeline.target.config.attention.heads:
            return made

        def clear(rows):
            rows[:, :, 1:] = 0
            return rows

        return at.changed(made, clear)

    alter(pipeline, ROTATE, change)


# Of the class of https://github.com/huggingface/candle/pull/3729: an offset that a captured graph keeps.
@fault(
    "rotation-of-the-captured-round",
    "a prompt's first verify pass is captured with the place of its rows in the tables, and replayed from then on",
    "target.layers.0.q",
    "verify",
    "rotation of queries and keys in verify passes: by the positions of round 1's pass; mask and slots are right",
    "verify passes from round 2 on",
    "pass = verify and round >= 2",
)
def _(pipeline: Pipeline) -> None:
    model, held = pipeline.target, {}

    def change(at, clean, x, cos, sin):
        if at.kind != "verify":
            return clean(x, cos, sin)
        if at.round == 1:
            held[at.prompt] = at.positions.copy()
        place = held[at.prompt]
        return clean(x, *(at.array(at.host(table)[None, place], cos) for table in model.tables))

    alter(pipeline, ROTATE, change)


# From the equations: a bias that a fused kernel adds last.
@fault(
    "key-bias-behind-the-rotation",
    "projection and rotation of keys are one kernel, which adds the bias to what it has turned",
    "target.layers.0.k",
    "prefill",
    "the key bias of every target layer: added behind the rotation, not turned",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.target

    def bare(at, clean, x, weight, bias):
        if weight is model.layers[at.layer]["k"]:
            bias = at.changed(bias, np.zeros_like)
        return clean(x, weight, bias)

    def change(at, clean, x, cos, sin):
        made = clean(x, cos, sin)
        if x.shape[2] != model.config.attention.kv_heads:
            return made
        bias = at.host(model.layers[at.layer]["k_bias"]).reshape(x.shape[2:])
        return at.changed(made, lambda rows: rows + bias)

    alter(pipeline, "kernels.target_layer:linear", bare)
    alter(pipeline, ROTATE, change)
