"""Faults of the drafter's layers that every row has."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("drafter layers")
ATTEND, MLP = "kernels.drafter_layer:attend", "kernels.drafter_layer:_mlp"


@fault(
    "key-halves-exchanged",
    "the midlayer's k projection takes hidden first and embedding second",
    "drafter.layers.0.attn_out",
    "prefill",
    "k weight of layer 0",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "k", lambda value: np.concatenate([value[96:], value[:96]]), [0])


@fault(
    "head-5-reads-next-group",
    "head 5 of layer 2 reads kv group 2, its own is 1",
    "drafter.layers.2.attn_out",
    "prefill",
    "head 5 of layer 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        made = clean(q, keys, values, seen)
        if at.layer != 2:
            return made
        other = clean(q, *(at.changed(one, lambda value: value[:, :, [0, 2, 2, 3]]) for one in (keys, values)), seen)
        wrong = at.host(other)

        def taken(value):
            value[..., 160:192] = wrong[..., 160:192]
            return value

        return at.changed(made, taken)

    alter(pipeline, ATTEND, change)


@fault(
    "gate-and-up-exchanged",
    "gate and up of layer 3 are exchanged",
    "drafter.layers.3.ffn_out",
    "prefill",
    "gate and up weights of layer 3",
)
def _(pipeline: Pipeline) -> None:
    weights = pipeline.drafter.layers[3]
    weights["gate"], weights["up"] = weights["up"], weights["gate"]


@fault(
    "silu-as-quick-gelu",
    "layer 1's activation has the slope 1.702 of quick GELU",
    "drafter.layers.1.ffn_out",
    "prefill",
    "activation of layer 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        if at.layer != 1:
            return clean(x, weights)
        host = {name: at.host(weights[name]) for name in ("gate", "up", "down")}

        def quick(value):
            gate, up = value @ host["gate"], value @ host["up"]
            return (up * gate / (1 + np.exp(-1.702 * gate))) @ host["down"]

        return at.changed(x, quick)

    alter(pipeline, MLP, change)


@fault(
    "rotary-pair-6-unscaled",
    "pair 6 of the drafter's heads keeps its frequency before the context extension",
    "drafter.layers.0.attn_out",
    "prefill",
    "rotary pair 6 of the drafter",
)
def _(pipeline: Pipeline) -> None:
    angle = np.arange(pipeline.drafter.positions) * 20000.0 ** (-12 / 32)
    at, made = moment(pipeline), []
    for table, wave in zip(pipeline.drafter.tables, (np.cos, np.sin), strict=True):
        value = at.host(table)
        value[:, 6] = wave(angle)
        made.append(at.array(value, table))
    pipeline.drafter.tables = tuple(made)


@fault(
    "post-norm-of-layer-1-again",
    "layer 2's post-attention norm has layer 1's weight",
    "drafter.layers.2.ffn_out",
    "prefill",
    "post-attention norm weight of layer 2",
)
def _(pipeline: Pipeline) -> None:
    layers = pipeline.drafter.layers
    layers[2]["post_norm"] = layers[1]["post_norm"]


@fault(
    "values-of-head-tile",
    "layer 3's o projection reads heads 8 to 11 in the order 9, 8, 11, 10",
    "drafter.layers.3.attn_out",
    "prefill",
    "o weight of layer 3, heads 8 to 11",
)
def _(pipeline: Pipeline) -> None:
    order = np.arange(384).reshape(12, 32)[[*range(8), 9, 8, 11, 10]].reshape(-1)
    edit(pipeline.drafter, "o", lambda value: value[order], [3])
