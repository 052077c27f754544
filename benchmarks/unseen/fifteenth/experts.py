"""Faults of the target's experts: weights, activation, shares and the rows they are given."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target experts", 15)
EXPERTS, BLOCK, TILE = 6, 32, 16
"""Experts of a layer, inputs that share a scale, rows that an expert takes at a time."""
MIX = "kernels.moe:mix"


@fault(
    "router-bias-for-the-choice-alone",
    "the router's bias counts for the choice alone, the softmax over the chosen leaves it out",
    "target.layers.0.ffn_out",
    "prefill",
    "shares of every layer: logits without the router bias",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, logits, chosen, weights, config):
        bias = at.host(weights["router_bias"])
        return clean(x, at.changed(logits, lambda value: value - bias), chosen, weights, config)

    alter(pipeline, "kernels.moe:mixture", change)


@fault(
    "experts-with-plain-silu",
    "the experts' sigmoid has a slope of 1 where 1.702 is meant",
    "target.layers.0.ffn_out",
    "prefill",
    "activation of every expert: alpha",
)
def _(pipeline: Pipeline) -> None:
    alter(pipeline, "kernels.moe:clamped_swiglu", lambda at, clean, gate, up, limit, alpha: clean(gate, up, limit, 1.0))


@fault(
    "expert-outputs-rounded-before-mix",
    "each expert's output is rounded to bfloat16 before its share multiplies",
    "target.layers.0.ffn_out",
    "prefill",
    "outputs of every expert: rounded to bfloat16 before the sum",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        rounded = at.changed(outputs, lambda value: value.astype(bfloat16).astype(np.float32))
        return clean(rounded, chosen, shares)

    alter(pipeline, MIX, change)


@fault(
    "down-scales-drift-by-expert",
    "padded scales: expert e's down weight takes the block scales of e outputs further on in layer 2",
    "target.layers.2.ffn_out",
    "prefill",
    "down weights of experts 1 to 5 of layer 2: scales of other outputs",
    "rows that choose an expert other than 0, layer 2",
    "layer = 2",
)
def _(pipeline: Pipeline) -> None:
    def drifted(value):
        blocks = value.reshape(EXPERTS, -1, BLOCK, value.shape[-1])
        scale = 2.0 ** np.floor(np.log2(np.maximum(np.abs(blocks).max(axis=2, keepdims=True), 1e-20)))
        late = np.stack([np.roll(one, -expert, axis=-1) for expert, one in enumerate(scale)])
        return (blocks / scale * late).reshape(value.shape)

    edit(pipeline.target, "down", drifted, [2])


@fault(
    "last-expert-lacks-its-partial-tile",
    "scales past the end of the buffer read as zero: the last expert's gate and up skip inputs from 64 on",
    "target.layers.0.ffn_out",
    "prefill",
    "expert 5's gate and up weights in every layer, inputs 64 to 95",
    "rows that choose expert 5",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value = value.copy()
        value[-1, 64:] = 0
        return value

    for name in ("gate", "up"):
        edit(pipeline.target, name, cut, every(pipeline.target))


@fault(
    "expert-tile-starts-with-row-before",
    "the first row of an expert's second tile of 16 and of later ones gets the output of the row before it",
    "target.layers.0.ffn_out",
    "prefill",
    "outputs of every expert: 17th, 33rd, ... row of each",
    "prefill rows that are the 17th, 33rd, ... of an expert of theirs",
    "pass = prefill",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        if at.kind != "prefill":
            return clean(outputs, chosen, shares)
        ids = at.host(chosen)[0]

        def late(value):
            for expert in range(EXPERTS):
                mine = np.flatnonzero((ids == expert).any(axis=-1))
                value[expert, 0, mine[TILE::TILE]] = value[expert, 0, mine[TILE - 1 : -1 : TILE]]
            return value

        return clean(at.changed(outputs, late), chosen, shares)

    alter(pipeline, MIX, change)


@fault(
    "expert-of-a-single-row-not-run",
    "an expert that one row of a verify pass chose alone is not run",
    "target.layers.0.ffn_out",
    "verify",
    "experts with a load of one row, every layer: output missing",
    "verify rows that choose an expert which no other row of the pass chooses",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        ids = at.host(chosen)
        single = np.bincount(ids.reshape(-1), minlength=EXPERTS)[ids] == 1
        there = at.kind == "verify"
        return clean(outputs, chosen, at.changed(shares, lambda v: np.where(single, 0.0, v)) if there else shares)

    alter(pipeline, MIX, change)
