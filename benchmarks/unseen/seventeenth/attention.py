"""Faults of the target's biases, sinks, softmax and output projection."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target attention", 17)
TILE = 64
"""Keys that the kernel takes at a time."""


@fault(
    "fused-bias-in-order-qvk",
    "the fused bias of q, k and v was put together in the order q, v, k",
    "target.layers.0.k",
    "prefill",
    "key and value biases of every layer, exchanged",
)
def _(pipeline: Pipeline) -> None:
    for layer in pipeline.target.layers:
        layer["k_bias"], layer["v_bias"] = layer["v_bias"], layer["k_bias"]


@fault(
    "sinks-in-base-e",
    "the kernel works in powers of two, scores were multiplied by log2(e) for it and sinks were not",
    "target.layers.0.attn_out",
    "prefill",
    "sinks of every layer, too small by ln 2",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "sinks", lambda value: value * np.log(2), every(pipeline.target))


@fault(
    "output-bias-on-both-ranks",
    "two ranks add the output bias each before their sums are reduced",
    "target.layers.0.attn_out",
    "prefill",
    "o bias of every layer, twice",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "o_bias", lambda value: 2 * value, every(pipeline.target))


@fault(
    "accumulator-not-rescaled",
    "a later tile of 64 keys with a larger score does not scale down what earlier tiles have added up",
    "target.layers.1.attn_out",
    "prefill",
    "softmax weights of earlier key tiles in full-attention layers",
    "rows whose largest score lies behind the first tile of 64 keys, odd layers",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        made = clean(x, sink)
        if sink is None or at.layer % 2 == 0:
            return made
        scores = at.host(x)
        starts = range(0, scores.shape[-1], TILE)
        tops = [np.max(scores[..., one : one + TILE], axis=-1, keepdims=True) for one in starts]
        running = np.maximum(np.maximum.accumulate(np.concatenate(tops, axis=-1), axis=-1), at.host(sink))
        late = np.repeat(np.exp(running[..., -1:] - running), TILE, axis=-1)[..., : scores.shape[-1]]
        return at.changed(made, lambda value: value * late)

    alter(pipeline, "kernels.attention:softmax", change)


@fault(
    "group-3-read-before-written",
    "layer 6 reads kv group 3 before the rows of the verify pass are written, they are still zero",
    "target.layers.6.attn_out",
    "verify",
    "keys and values of the pass' own rows, kv group 3 of layer 6",
    "verify passes, layer 6",
    "pass = verify and layer = 6",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, *rest):
        if at.layer == 6 and at.kind == "verify":

            def empty(value):
                value[:, at.positions[at.positions < value.shape[1]], 3] = 0
                return value

            keys, values = at.changed(keys, empty), at.changed(values, empty)
        return clean(q, keys, values, *rest)

    alter(pipeline, "kernels.target_layer:attend", change)
