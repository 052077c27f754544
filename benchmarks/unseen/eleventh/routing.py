"""Eleventh set: faults of the router and of its choice."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels.linear import linear
from parity.device.pipeline import Pipeline

fault = Part("routing", 11)
LINEAR, TOP_K = "kernels.moe:linear", "kernels.moe:top_k"


# After https://github.com/kekzl/imp/pull/2056: one expert a thread, and more experts than a block has threads.
@fault(
    "experts-beyond-the-block",
    "the choice of experts has a thread for each of four, and experts 4 and 5 have none",
    "target.layers.0.experts",
    "prefill",
    "the choice of experts in every layer: among experts 0 to 3 alone",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        def hide(rows):
            rows[..., 4:] = -1e30
            return rows

        return clean(at.changed(logits, hide), k)

    alter(pipeline, TOP_K, change)


# Of offloading engines, which fetch a layer's experts by what its router says of the layer before.
@fault(
    "experts-fetched-ahead",
    "in verify passes a layer runs the experts that were fetched for it, which its router chose from the input of the "
    "router before",
    "target.layers.1.experts",
    "verify",
    "the choice of experts: the layer's own router on the router's input of the layer before; logits are right",
    "verify passes, layers from 1 on",
    "pass = verify and layer >= 1",
)
def _(pipeline: Pipeline) -> None:
    layers, held = pipeline.target.layers, {}

    def watch(at, clean, x, weight, bias):
        if weight is layers[at.layer]["router"]:
            held[at.layer] = x
        return clean(x, weight, bias)

    def change(at, clean, logits, k):
        if at.kind == "verify" and at.layer:
            mine = layers[at.layer]
            logits = linear(held[at.layer - 1], mine["router"], mine["router_bias"])
        return clean(logits, k)

    alter(pipeline, LINEAR, watch)
    alter(pipeline, TOP_K, change)


# Of the class of https://github.com/aws-neuron/aws-neuron-sdk/issues/1051: a bias in an accumulator of several tiles.
@fault(
    "router-bias-in-every-tile",
    "the router sums its inputs in three tiles of 32, and each tile adds the bias to the accumulator",
    "target.layers.0.router_logits",
    "prefill",
    "the router's bias in every layer: three times what it should be",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        if weight is pipeline.target.layers[at.layer]["router"]:
            bias = at.changed(bias, lambda row: row * np.float32(3))
        return clean(x, weight, bias)

    alter(pipeline, LINEAR, change)
