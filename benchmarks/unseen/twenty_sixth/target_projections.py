"""Faults of the target's query, key, value and output projections."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target projections", 26)


@fault(
    "key-and-value-biases-exchanged",
    "the fused bias of layer 2 is cut as q, v, k: keys get the values' bias and values the keys'",
    "target.layers.2.k",
    "prefill",
    "biases of k and v in layer 2",
)
def _(pipeline: Pipeline) -> None:
    layer = pipeline.target.layers[2]
    layer["k_bias"], layer["v_bias"] = layer["v_bias"], layer["k_bias"]


@fault(
    "rotary-order-of-qk-biases-interleaved",
    "biases of q and k are put in the order of an interleaved rotation within each head, the weights are not",
    "target.layers.0.q",
    "prefill",
    "order of q's and k's biases within each head, in every layer",
)
def _(pipeline: Pipeline) -> None:
    half = pipeline.target.config.attention.head_dim // 2

    def interleaved(value):
        return value.reshape(-1, 2, half).swapaxes(1, 2).reshape(-1)

    edit(pipeline.target, "q_bias k_bias", interleaved, every(pipeline.target))


@fault(
    "output-bias-in-both-contraction-splits",
    "the output projection of few rows is split over its inputs in two, and both halves add the bias in full layers",
    "target.layers.1.attn_out",
    "verify",
    "output bias of odd layers, twice",
    "verify passes, odd layers",
    "pass = verify and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        made = clean(x, weight, bias)
        twice = at.kind == "verify" and at.layer % 2 == 1
        return at.changed(made, lambda value: value + at.host(bias)) if twice else made

    alter(pipeline, "kernels.target_layer:row_parallel", change)


@fault(
    "last-key-head-never-rotated-once",
    "the rotation's loop over kv heads ends one early: the last key head goes into the cache as it is",
    "target.layers.0.k",
    "prefill",
    "rotation of kv head 3's keys in every layer",
)
def _(pipeline: Pipeline) -> None:
    groups = pipeline.target.config.attention.kv_heads

    def change(at, clean, x, cos, sin):
        def plain(value):
            value[:, :, -1] = at.host(x)[:, :, -1]
            return value

        made = clean(x, cos, sin)
        return at.changed(made, plain) if x.shape[2] == groups else made

    alter(pipeline, "kernels.target_layer:rotate", change)


@fault(
    "verify-keys-at-first-rows-angle",
    "a verify pass rotates all its keys by the angle of its first row, the queries each by their own",
    "target.layers.0.k",
    "verify",
    "rotation of keys",
    "verify rows behind the first one",
    "pass = verify and row > 0",
)
def _(pipeline: Pipeline) -> None:
    groups = pipeline.target.config.attention.kv_heads

    def first(value):
        return np.repeat(value[:, :1], value.shape[1], axis=1)

    def change(at, clean, x, cos, sin):
        if at.kind == "verify" and x.shape[2] == groups:
            cos, sin = at.changed(cos, first), at.changed(sin, first)
        return clean(x, cos, sin)

    alter(pipeline, "kernels.target_layer:rotate", change)
