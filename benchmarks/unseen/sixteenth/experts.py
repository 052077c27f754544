"""Faults of the target's router and experts."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target experts", 16)
FFN = "target.layers.0.ffn_out"
MIX = "kernels.moe:mix"


@fault(
    "shares-of-all-experts",
    "the softmax runs over all experts before the choice, and the chosen shares are not normed again",
    FFN,
    "prefill",
    "shares of the chosen experts in every layer",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def remember(at, clean, x, logits, *rest):
        held["logits"] = at.host(logits)
        return clean(x, logits, *rest)

    def change(at, clean, outputs, chosen, shares):
        parts = np.exp(held["logits"] - held["logits"].max(axis=-1, keepdims=True))
        taken = np.take_along_axis(parts, at.host(chosen), axis=-1)
        mass = taken.sum(axis=-1, keepdims=True) / parts.sum(axis=-1, keepdims=True)
        return clean(outputs, chosen, at.changed(shares, lambda value: value * mass))

    alter(pipeline, "kernels.moe:mixture", remember)
    alter(pipeline, MIX, change)


@fault(
    "down-bias-not-weighted",
    "the down bias is added behind the routing weight, each chosen expert's as a whole",
    FFN,
    "prefill",
    "down bias of the chosen experts in every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        bias = at.host(pipeline.target.layers[at.layer]["down_bias"])[at.host(chosen)]
        extra = np.sum(bias * (1 - at.host(shares))[..., None], axis=-2)
        return at.changed(clean(outputs, chosen, shares), lambda value: value + extra)

    alter(pipeline, MIX, change)


@fault(
    "gate-up-biases-in-halves",
    "weights of gate and up were taken apart in turns, their biases in halves",
    FFN,
    "prefill",
    "gate and up biases of every expert of every layer",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)
    for layer in pipeline.target.layers:
        gate, up = layer["gate_bias"], layer["up_bias"]
        stored = np.stack([at.host(gate), at.host(up)], axis=-1).reshape(gate.shape[0], -1)
        layer["gate_bias"], layer["up_bias"] = (at.array(half, gate) for half in np.split(stored, 2, axis=-1))


@fault(
    "scales-past-the-end",
    "the last expert's scales of the last block of 32 inputs lie behind the buffer's end and read as zero",
    FFN,
    "prefill",
    "expert 5's gate and up weights in every layer, inputs 64 to 95",
    "rows that choose expert 5",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value = value.copy()
        value[5, 64:] = 0
        return value

    for name in ("gate", "up"):
        edit(pipeline.target, name, cut, every(pipeline.target))


@fault(
    "lone-row-without-down-bias",
    "an expert with one row of a verify pass takes the path for vectors, which adds no down bias",
    "target.layers.1.ffn_out",
    "verify",
    "down bias of experts with one row in every layer",
    "verify rows whose expert has no other row of the pass",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        made = clean(outputs, chosen, shares)
        if at.kind != "verify":
            return made
        ids = at.host(chosen)
        lone = np.bincount(ids[:, at.positions < pipeline.target.trash].ravel(), minlength=6)[ids] == 1
        bias = at.host(pipeline.target.layers[at.layer]["down_bias"])[ids]
        lost = np.sum(bias * np.where(lone, at.host(shares), 0.0)[..., None], axis=-2)
        return at.changed(made, lambda value: value - lost)

    alter(pipeline, MIX, change)
