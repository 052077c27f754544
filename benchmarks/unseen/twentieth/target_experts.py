"""Faults of the target's experts: what is loaded of their weights, and their activation."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("expert weights and activation", 20)
BLOCK = 32
"""Inputs that share an MXFP4 scale."""
TILE = 128
"""Columns that the activation takes at a time."""


def scales_of(value):
    """The weights [E, in, out] by blocks [E, in / 32, 32, out], and the power of two that MXFP4 divides each by."""
    blocks = value.reshape(value.shape[0], -1, BLOCK, value.shape[-1])
    largest = np.maximum(np.abs(blocks).max(axis=2, keepdims=True), 1e-30)
    return blocks, 2.0 ** (np.floor(np.log2(largest)) - 2)


@fault(
    "subnormals-of-four-bits-lost",
    "the down weights' MXFP4 codes without an exponent are decoded as zero: what is less than 0.75 of a block's scale",
    "target.layers.0.ffn_out",
    "prefill",
    "smallest numbers of every expert's down weight",
)
def _(pipeline: Pipeline) -> None:
    def flushed(value):
        blocks, scales = scales_of(value)
        return np.where(np.abs(blocks) < 0.75 * scales, 0, blocks).reshape(value.shape)

    edit(pipeline.target, "down", flushed, every(pipeline.target))


@fault(
    "scales-one-output-late",
    "in layer 4 expert 2's up weight is decoded with the scales of the output before",
    "target.layers.4.ffn_out",
    "prefill",
    "MXFP4 scales of expert 2's up weight in layer 4",
)
def _(pipeline: Pipeline) -> None:
    def late(value):
        blocks, scales = scales_of(value)
        made = (blocks / scales * np.roll(scales, 1, axis=-1)).reshape(value.shape)
        return np.where(np.arange(len(value))[:, None, None] == 2, made, value)

    edit(pipeline.target, "up", late, [4])


@fault(
    "up-clamped-from-above-alone",
    "columns of the up projection that remain behind a tile of 128 are clamped from above alone, as the gate is",
    "target.layers.0.ffn_out",
    "prefill",
    "lower clamp of the up projection, columns 128 to 159",
    "rows that choose an expert whose up projection is below -7 in a column from 128 on",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        wide, raised = np.minimum(at.host(gate), limit), np.minimum(at.host(up), limit)
        raised[..., :TILE] = np.maximum(raised[..., :TILE], -limit)
        return at.array((raised + 1) * wide / (1 + np.exp(-alpha * wide)), gate)

    alter(pipeline, "kernels.moe:clamped_swiglu", change)
