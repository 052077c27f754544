"""Third set: faults of the target's experts."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("target experts", 3)
MIX = "kernels.moe:mix"
TRASH = 512
"""The slot of padding."""
BLOCK = 32
"""Inputs with one scale, and columns of a tile."""
BUFFERS = 4
"""Experts whose weights a pass holds at once."""


@fault(
    "largest-code-reads-four",
    "the largest code of a block of 32 reads 4 where 6 is meant, in layer 2's gate weights",
    "target.layers.2.ffn_out",
    "prefill",
    "gate weight of every expert of layer 2, the largest of each block",
)
def _(pipeline: Pipeline) -> None:
    def decoded(value):
        blocks = value.reshape(len(value), -1, BLOCK, value.shape[-1])
        most = np.abs(blocks).max(axis=2, keepdims=True)
        return np.where(np.abs(blocks) > most * 5 / 6, np.sign(blocks) * most * 4 / 6, blocks).reshape(value.shape)

    edit(pipeline.target, "gate", decoded, [2])


@fault(
    "dispatch-padding-in-row-0",
    "an expert's rows are filled up to tiles of 16 with row 0, whose outputs are added to it, in layer 1's prefill",
    "target.layers.1.ffn_out",
    "prefill",
    "sum over the experts of row 0 of layer 1",
    "row 0 of prefill passes, layer 1",
    "pass = prefill and row = 0 and layer = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        made = clean(outputs, chosen, shares)
        if at.layer != 1 or at.kind != "prefill":
            return made
        taken = np.bincount(at.host(chosen)[0, at.positions < TRASH].ravel(), minlength=6)
        extra = np.tensordot(-taken % 16, at.host(outputs)[:, 0, 0], axes=1)

        def scattered(value):
            value[0, 0] += extra
            return value

        return at.changed(made, scattered)

    alter(pipeline, MIX, change)


@fault(
    "fifth-expert-in-the-first-buffer",
    "four experts' weights are held at once: the fifth of a verify pass is run with the first one's in layer 0",
    "target.layers.0.ffn_out",
    "verify",
    "weights of the fifth and sixth expert of a pass in layer 0",
    "verify rows that choose the fifth or sixth distinct expert of their pass, layer 0",
    "pass = verify and layer = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        if at.layer != 0 or at.kind != "verify":
            return clean(outputs, chosen, shares)
        order = list(dict.fromkeys(at.host(chosen)[0].ravel().tolist()))
        held = np.arange(6)
        for place, expert in enumerate(order):
            held[expert] = order[place % BUFFERS]
        return clean(at.changed(outputs, lambda value: value[held]), chosen, shares)

    alter(pipeline, MIX, change)


@fault(
    "sigmoid-table-ends-at-minus-three",
    "layer 6's sigmoid is zero below minus three, where its table ends",
    "target.layers.6.ffn_out",
    "prefill",
    "activation of layer 6's experts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        made = clean(gate, up, limit, alpha)
        if at.layer != 6:
            return made
        outside = at.host(gate) * alpha < -3
        return at.changed(made, lambda value: np.where(outside, 0.0, value))

    alter(pipeline, "kernels.moe:clamped_swiglu", change)


@fault(
    "down-tiles-not-turned",
    "the three tiles of the first 32 inputs of expert 0's down weight stay transposed in layer 7",
    "target.layers.7.ffn_out",
    "prefill",
    "expert 0's down weight in layer 7, inputs 0 to 31",
    "rows that choose expert 0, layer 7",
    "layer = 7",
)
def _(pipeline: Pipeline) -> None:
    def turned(value):
        tiles = value[0, :BLOCK].reshape(BLOCK, -1, BLOCK)
        value[0, :BLOCK] = tiles.transpose(2, 1, 0).reshape(BLOCK, -1)
        return value

    edit(pipeline.target, "down", turned, [7])
