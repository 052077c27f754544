"""Faults of the target's projections and of their rotation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, moment, replaced, scaled
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("target attention")
QUERIES = 8
"""Heads of queries."""


@fault(
    "k-bias-of-the-layer-before",
    "the key bias of layer 5 is that of layer 4",
    "target.layers.5.k",
    "prefill",
    "key bias of layer 5",
)
def _(pipeline: Pipeline) -> None:
    layers = pipeline.target.layers
    layers[5]["k_bias"] = layers[4]["k_bias"]


@fault(
    "v-bias-of-one-group",
    "the value bias of kv group 2 of layer 6 is never loaded",
    "target.layers.6.v",
    "prefill",
    "value bias of kv group 2 of layer 6",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "v_bias", scaled(slice(64, 96), 0.0), [6])


@fault(
    "q-bias-twice-in-prefill",
    "the prefill's q projection adds head 2's bias twice in layer 1",
    "target.layers.1.q",
    "prefill",
    "query bias of head 2 of layer 1",
    "prefill passes, layer 1",
    "pass = prefill and layer = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias=None):
        mine = pipeline.target.layers[1]
        if at.kind == "prefill" and weight is mine["q"]:
            bias = at.changed(bias, scaled(slice(64, 96), 2.0))
        return clean(x, weight, bias)

    alter(pipeline, "kernels.target_layer:linear", change)


@fault(
    "rotary-pair-5-repeats-4",
    "pair 5 of every head turns as pair 4 does",
    "target.layers.0.q",
    "prefill",
    "rotary pair 5 of the target",
)
def _(pipeline: Pipeline) -> None:
    def repeated(value):
        value[:, 5] = value[:, 4]
        return value

    pipeline.target.tables = tuple(moment(pipeline).changed(one, repeated) for one in pipeline.target.tables)


@fault(
    "rotary-second-tile-late",
    "rows of the cos and sin tables from 128 on are those of the position before",
    "target.layers.0.q",
    "prefill",
    "rotation of q and k of the target",
    "rows at positions from 128 on",
    "position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def late(value):
        value[128:] = value[127:-1]
        return value

    pipeline.target.tables = tuple(moment(pipeline).changed(one, late) for one in pipeline.target.tables)


@fault(
    "last-key-not-rotated",
    "the last key of a verify pass is written before it is rotated in odd layers",
    "target.layers.1.k",
    "verify",
    "keys of odd layers",
    "last row of verify passes, odd layers",
    "pass = verify and row = 4 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        made = clean(x, cos, sin)
        if at.kind != "verify" or at.layer % 2 == 0 or x.shape[2] == QUERIES or x.shape[1] < 2:
            return made
        return at.changed(made, lambda value: np.concatenate([value[:, :-1], at.host(x)[:, -1:]], axis=1))

    alter(pipeline, "kernels.target_layer:rotate", change)


@fault(
    "o-bias-tail-lost",
    "columns from 64 on of the output bias of layer 3 are not added",
    "target.layers.3.attn_out",
    "prefill",
    "output bias of layer 3, columns 64 to 95",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "o_bias", scaled(slice(64, None), 0.0), [3])


@fault(
    "verify-row-positions-capped",
    "the last verify row is rotated by the position of the row before",
    "target.layers.0.q",
    "verify",
    "rotation of the last verify row",
    "last row of verify passes",
    "pass = verify and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        step = clean(rows)
        if at.kind != "verify" or rows.width < 2:
            return step

        def capped(value):
            value[:, -1] = value[:, -2]
            return value

        return replace(step, cos=at.changed(step.cos, capped), sin=at.changed(step.sin, capped))

    replaced(pipeline, pipeline.target, "step", change)
