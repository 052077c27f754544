"""Ninth set: faults of the experts."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("experts", 9)


# After https://github.com/ModelTC/LightLLM/pull/1369
@fault(
    "second-block-wraps-round",
    "experts run in blocks of four, and the second block's last two, modulo six, are experts 0 and 1 again",
    "target.layers.0.ffn_out",
    "prefill",
    "outputs of experts 0 and 1 in every layer: they are added twice",
    "rows that choose expert 0 or 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        twice = np.where(np.arange(outputs.shape[0]) < 2, 2, 1).astype(np.float32)[:, None, None, None]
        return clean(at.changed(outputs, lambda rows: rows * twice), chosen, shares)

    alter(pipeline, "kernels.moe:mix", change)


# From the equations: a second launch for what the first has no room for, and an argument that it is not given.
@fault(
    "second-launch-without-biases",
    "an expert takes 64 rows a launch, and the second launch is not given the biases of gate and up",
    "target.layers.1.ffn_out",
    "prefill",
    "biases of gate and up behind an expert's 64th row: they are missing",
    "rows behind the 64th of a pass that chose the same expert",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, chosen, shares, weights, config):
        ids, share = at.host(chosen), at.host(shares)
        mine = ids[..., None] == np.arange(config.experts)
        place = (np.cumsum(mine.any(axis=2), axis=1)[:, :, None] * mine).sum(axis=-1)
        bare = weights | {name: at.changed(weights[name], np.zeros_like) for name in ("gate_bias", "up_bias")}

        def part(rows, held):
            return clean(x, chosen, at.array(np.where(rows, share, np.float32(0)), shares), held, config)

        late = at.host(part(place > 64, bare))
        return at.changed(part(place <= 64, weights), lambda rows: rows + late)

    alter(pipeline, "kernels.moe:masked", change)


# From the equations: gpt-oss keeps gate and up interleaved, biases as weights.
@fault(
    "biases-cut-in-halves",
    "a loader takes every other column of the experts' weights for gate and up, and halves of the biases",
    "target.layers.0.ffn_out",
    "prefill",
    "biases of gate and up in every layer: gate's and up's in turn, of columns 0 to 79 and 80 to 159",
)
def _(pipeline: Pipeline) -> None:
    for layer in pipeline.target.layers:
        both = np.stack([np.asarray(layer[name]).astype(np.float32) for name in ("gate_bias", "up_bias")], axis=-1)
        halves = np.split(both.reshape(len(both), -1), 2, axis=-1)
        for name, half in zip(("gate_bias", "up_bias"), halves, strict=True):
            rewritten(pipeline, layer, name, lambda _, half=half: half)


# After https://github.com/sgl-project/sglang/issues/36456
@fault(
    "scales-behind-the-last-expert",
    "scales are read a block further than there are some: what lies behind the last expert's makes its last block half",
    "target.layers.0.ffn_out",
    "prefill",
    "gate and up weights of expert 5 in every layer, inputs 64 to 95: half of what they are",
    "rows that choose expert 5",
)
def _(pipeline: Pipeline) -> None:
    def halve(weight):
        weight[5, 64:] *= 0.5
        return weight

    for layer in pipeline.target.layers:
        for name in ("gate", "up"):
            rewritten(pipeline, layer, name, halve)


# From the equations: a unit for exponentials that takes its argument in bfloat16.
@fault(
    "sigmoid-of-a-rounded-argument",
    "the experts' sigmoid takes 1.702 times the gate in bfloat16",
    "target.layers.0.ffn_out",
    "prefill",
    "the argument of the sigmoid in every expert: rounded to bfloat16; the gate in front of it is not",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        wide = np.minimum(at.host(gate), np.float32(limit))
        lifted = np.clip(at.host(up), -limit, limit) + np.float32(1)
        inner = (wide * np.float32(alpha)).astype(ml_dtypes.bfloat16).astype(np.float32)
        return at.array((lifted * wide / (1 + np.exp(-inner))).astype(np.float32), gate)

    alter(pipeline, "kernels.moe:clamped_swiglu", change)


# From the equations: a buffer of sums that is cleared from its second row on.
@fault(
    "first-row-not-cleared",
    "the experts' sums of a verify pass are added up in one buffer for all layers, and odd ones clear it from row 1 on",
    "target.layers.1.ffn_out",
    "verify",
    "the experts' sum of row 0: that of the layer before is in it",
    "row 0 of verify passes, odd layers",
    "pass = verify and row = 0 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    left = {}

    def change(at, clean, *given):
        made = clean(*given)
        if at.kind != "verify":
            return made
        if at.layer % 2 == 0:
            left["row"] = at.host(made)[:, 0]
            return made

        def add(rows):
            rows[:, 0] += left["row"]
            return rows

        return at.changed(made, add)

    alter(pipeline, "kernels.moe:mixture", change)
