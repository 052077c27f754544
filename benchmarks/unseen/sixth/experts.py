"""Sixth set: faults of router and experts."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("experts", 6)
erf = np.frompyfunc(math.erf, 1, 1)


# From the equations: a correction bias chooses and does not weigh; this is the reverse.
@fault(
    "bias-behind-the-choice",
    "experts are chosen by logits without the router's bias; their weights come of logits with it",
    "target.layers.0.experts",
    "prefill",
    "the choice of experts: the router's bias does not count in it",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        bias = at.host(at.pipeline.target.layers[at.layer]["router_bias"])
        return clean(at.engine.array(at.host(logits) - bias), k)

    alter(pipeline, "kernels.moe:top_k", change)


# After https://github.com/ROCm/ATOM/pull/748
@fault(
    "one-tile-not-deinterleaved",
    "the last 32 gate and up columns of expert 4 in layer 2 stand in each other's place",
    "target.layers.2.ffn_out",
    "prefill",
    "gate and up of one expert in one layer: columns 128 to 159 exchanged, biases with them",
    "layer 2, rows that choose expert 4",
)
def _(pipeline: Pipeline) -> None:
    layer = pipeline.target.layers[2]
    for ending in ("", "_bias"):
        both = {name: np.asarray(layer[name + ending]).astype(np.float32) for name in ("gate", "up")}
        for name, other in (("gate", "up"), ("up", "gate")):

            def take(weight, other=both[other]):
                weight[4, ..., 128:] = other[4, ..., 128:]
                return weight

            rewritten(pipeline, layer, name + ending, take)


# From the equations: x sigmoid(1.702 x) is an approximation of GELU, and a kernel may have the exact one at hand.
@fault(
    "exact-gelu",
    "the experts' gate goes through the exact GELU, which gpt-oss's sigmoid of 1.702 times the gate approximates",
    "target.layers.1.ffn_out",
    "prefill",
    "the experts' activation: gate times the normal distribution's integral, clamps and up + 1 as they should be; "
    "layer 0's gates are small, and it moves by less than twice noise",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        wide = np.minimum(at.host(gate), limit)
        lifted = np.clip(at.host(up), -limit, limit) + 1
        integral = (1 + erf(wide / math.sqrt(2)).astype(np.float32)) / 2
        return at.array((lifted * wide * integral).astype(np.float32), gate)

    alter(pipeline, "kernels.moe:clamped_swiglu", change)


# After https://github.com/vllm-project/vllm/pull/42098
@fault(
    "intermediate-pad-too-wide",
    "down takes the last 8 of 160 intermediate columns for padding",
    "target.layers.0.ffn_out",
    "prefill",
    "down of every expert in every layer: inputs 152 to 159 add nothing",
)
def _(pipeline: Pipeline) -> None:
    def cut(weight):
        weight[:, -8:] = 0
        return weight

    for layer in pipeline.target.layers:
        rewritten(pipeline, layer, "down", cut)


# After https://github.com/vllm-project/vllm-xpu-kernels/pull/66: top-k above 1 applies the weights wrongly.
@fault(
    "weights-not-permuted",
    "the chosen experts are sorted by their number for dispatch, their weights stay in the order of the scores",
    "target.layers.0.ffn_out",
    "prefill",
    "combining weights: the two experts of a row have each other's",
    "rows whose best expert has the higher number",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        return clean(outputs, at.changed(chosen, lambda ids: np.sort(ids, axis=-1)), shares)

    alter(pipeline, "kernels.moe:mix", change)
