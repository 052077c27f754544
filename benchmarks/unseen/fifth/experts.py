"""Fifth set: faults of the target's router and experts."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("target experts", 5)
MOE = "kernels.moe"
CHUNK, LAST = 64, 5
"""Prefill rows that are mixed at a time; the last expert's id."""
FOUR_BITS = np.uint32(0xFFF80000)
"""What a float32 of four bits of mantissa keeps."""


@fault(
    "down-inputs-regrouped",
    "inputs of layer 5's down weights are regrouped, even ones first, and the outputs of gate and up are not",
    "target.layers.5.ffn_out",
    "prefill",
    "order of inputs of every expert's down weight in layer 5",
)
def _(pipeline: Pipeline) -> None:
    def regrouped(value):
        return np.concatenate([value[:, ::2], value[:, 1::2]], axis=1)

    edit(pipeline.target, "down", regrouped, [5])


@fault(
    "shares-of-the-chunk-before",
    "a prefill is mixed in chunks of 64 rows, and every chunk takes the shares of the one before in layer 3",
    "target.layers.3.ffn_out",
    "prefill",
    "shares of layer 3",
    "prefill rows from 64 on, layer 3",
    "pass = prefill and row >= 64 and layer = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        def before(value):
            value[:, CHUNK:] = value[:, :-CHUNK].copy()
            return value

        there = at.layer == 3 and at.kind == "prefill"
        return clean(outputs, chosen, at.changed(shares, before) if there else shares)

    alter(pipeline, f"{MOE}:mix", change)


@fault(
    "second-choice-with-the-first-bias",
    "a verify row's second expert adds the down bias of its first in layer 4",
    "target.layers.4.ffn_out",
    "verify",
    "down bias of the second expert of a row in layer 4",
    "verify passes, layer 4",
    "pass = verify and layer = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, chosen, shares, weights, config):
        made = clean(x, chosen, shares, weights, config)
        if at.layer != 4 or at.kind != "verify":
            return made
        biases = at.host(weights["down_bias"])[at.host(chosen)]
        more = at.host(shares)[..., 1:] * (biases[..., 0, :] - biases[..., 1, :])
        return at.changed(made, lambda value: value + more)

    alter(pipeline, f"{MOE}:masked", change)


@fault(
    "router-without-norm-weight",
    "the norm's weight is folded into the experts of layer 6 and not into its router, which sees a row without it",
    "target.layers.6.router_logits",
    "prefill",
    "router input of layer 6",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias=None):
        mine = pipeline.target.layers[6]
        if weight is mine["router"]:
            x = at.changed(x, lambda value: value / at.host(mine["post_norm"]))
        return clean(x, weight, bias)

    alter(pipeline, f"{MOE}:linear", change)


@fault(
    "id-in-the-low-bits",
    "experts are chosen by numbers that hold the id in their low bits: four bits of mantissa are left of a logit",
    "target.layers.4.experts",
    "prefill",
    "chosen experts of every layer",
    "rows of which two of the largest router logits are one in four bits of mantissa, the larger id second",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        def packed(value):
            return (np.ascontiguousarray(value).view(np.uint32) & FOUR_BITS).view(np.float32)[..., ::-1]

        return at.changed(clean(at.changed(logits, packed), k), lambda value: LAST - value)

    alter(pipeline, f"{MOE}:top_k", change)
