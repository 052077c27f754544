"""Second set: faults of the target's router and experts."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("target experts", 2)
MIX = "kernels.moe:mix"


@fault(
    "last-columns-of-gate-and-up-exchanged",
    "gate and up of expert 2 of layer 5 are exchanged in columns 144 to 159",
    "target.layers.5.ffn_out",
    "prefill",
    "expert 2's gate and up in layer 5, columns 144 to 159",
    "rows that choose expert 2, layer 5",
    "layer = 5",
)
def _(pipeline: Pipeline) -> None:
    at, mine = moment(pipeline), pipeline.target.layers[5]
    for pair in (("gate", "up"), ("gate_bias", "up_bias")):
        gate, up = (at.host(mine[name]) for name in pair)
        gate[2, ..., 144:], up[2, ..., 144:] = up[2, ..., 144:].copy(), gate[2, ..., 144:].copy()
        for name, value in zip(pair, (gate, up), strict=True):
            mine[name] = at.array(value, mine[name])


@fault(
    "up-biases-of-the-first-half",
    "experts 3 to 5 of layer 3 have the up biases of experts 0 to 2",
    "target.layers.3.ffn_out",
    "prefill",
    "up biases of experts 3 to 5 in layer 3",
    "rows that choose expert 3, 4 or 5, layer 3",
    "layer = 3",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "up_bias", lambda value: np.concatenate([value[:3], value[:3]]), [3])


@fault(
    "router-bias-for-four-rows",
    "the fifth row of a verify pass goes without the router bias in layer 2",
    "target.layers.2.router_logits",
    "verify",
    "router bias of layer 2",
    "row 4 of verify passes, layer 2",
    "pass = verify and row = 4 and layer = 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        made = clean(x, weight, bias)
        if at.kind != "verify" or x.shape[1] < 5 or weight is not pipeline.target.layers[2]["router"]:
            return made
        return at.changed(made, lambda value: np.concatenate([value[:, :4], at.host(clean(x, weight))[:, 4:]], axis=1))

    alter(pipeline, "kernels.moe:linear", change)


@fault(
    "shares-rounded",
    "the experts' shares are rounded to bfloat16 in layer 4",
    "target.layers.4.ffn_out",
    "prefill",
    "shares of layer 4's experts",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        rounded = at.layer == 4
        return clean(outputs, chosen, at.changed(shares, lambda value: value.astype(bfloat16)) if rounded else shares)

    alter(pipeline, MIX, change)


@fault(
    "down-bias-behind-the-shares",
    "the down biases of a row's experts are added whole, not by their shares, in layer 6",
    "target.layers.6.ffn_out",
    "prefill",
    "down bias of every expert of layer 6",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        made = clean(outputs, chosen, shares)
        if at.layer != 6:
            return made
        biases = at.host(pipeline.target.layers[6]["down_bias"])[at.host(chosen)]
        lacking = (biases * (1 - at.host(shares))[..., None]).sum(axis=2)
        return at.changed(made, lambda value: value + lacking)

    alter(pipeline, MIX, change)


@fault(
    "scatter-keeps-the-last-row",
    "a verify row loses its first expert where the next row has the same first expert",
    "target.layers.0.ffn_out",
    "verify",
    "sum over the experts of a row",
    "verify rows whose first expert is also the next row's",
    "pass = verify and row < 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        if at.kind != "verify":
            return clean(outputs, chosen, shares)
        first = at.host(chosen)[0, :, 0]

        def lost(value):
            value[0, :-1, 0] *= first[:-1] != first[1:]
            return value

        return clean(outputs, chosen, at.changed(shares, lost))

    alter(pipeline, MIX, change)


@fault(
    "router-columns-4-and-5",
    "the router weights of experts 4 and 5 are exchanged in layer 1, their biases are not",
    "target.layers.1.router_logits",
    "prefill",
    "router weight of layer 1, experts 4 and 5",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "router", lambda value: value[:, [0, 1, 2, 3, 5, 4]], [1])
