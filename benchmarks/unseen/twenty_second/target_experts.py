"""Faults of the target's router, experts and their dispatch."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target experts", 22)
OUT = "target.layers.{}.ffn_out"


def in_blocks(value):
    """MXFP4 blocks [E, in / 32, 32, out] of a weight [E, in, out], and their scales [E, in / 32, 1, out]."""
    blocks = value.reshape(value.shape[0], -1, 32, value.shape[2])
    top = np.maximum(np.abs(blocks).max(axis=2, keepdims=True), 1e-30)
    return blocks, 2.0 ** (np.floor(np.log2(top)) - 2)


@fault(
    "router-weight-fp8",
    "the router's weight is quantised to fp8 (e4m3) with the other linear layers",
    "target.layers.0.router_logits",
    "prefill",
    "router weight of every layer",
)
def _(pipeline: Pipeline) -> None:
    def narrow(value):
        scale = np.abs(value).max() / 448
        return (value / scale).astype(float8_e4m3fn).astype(np.float32) * scale

    edit(pipeline.target, "router", narrow, every(pipeline.target))


@fault(
    "subnormal-code-as-normal",
    "MXFP4's code of 0.5 is decoded by the formula of normal numbers, as 0.75",
    OUT.format(0),
    "prefill",
    "gate weight of every expert: numbers of a quarter to three quarters of their block's scale, times 1.5",
)
def _(pipeline: Pipeline) -> None:
    def decoded(value):
        blocks, scales = in_blocks(value)
        half = np.abs(np.abs(blocks) / scales - 0.5) < 0.25
        return np.where(half, 1.5 * blocks, blocks).reshape(value.shape)

    edit(pipeline.target, "gate", decoded, every(pipeline.target))


@fault(
    "down-scales-block-major",
    "layer 1: scales of the down weight are read as (block, output), their file has (output, block)",
    OUT.format(1),
    "prefill",
    "memory order of the MXFP4 scales of the down weight in layer 1",
)
def _(pipeline: Pipeline) -> None:
    def read(value):
        blocks, scales = in_blocks(value)
        stored = np.ascontiguousarray(scales[:, :, 0].swapaxes(1, 2)).reshape(scales.shape)
        return (blocks / scales * stored).reshape(value.shape)

    edit(pipeline.target, "down", read, [1])


@fault(
    "clamp-behind-plus-one",
    "up is clamped behind the addition of one, not before it",
    OUT.format(0),
    "prefill",
    "clamp of up in every expert",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        wide, lifted = np.minimum(at.host(gate), limit), np.clip(at.host(up) + 1, -limit, limit)
        return at.array(lifted * wide / (1 + np.exp(-alpha * wide)), gate)

    alter(pipeline, "kernels.moe:clamped_swiglu", change)


@fault(
    "pair-of-experts-overwritten",
    "experts run two at a time, and of a row that chose both of a pair the second one's part overwrites the first's",
    OUT.format(0),
    "prefill",
    "part of the expert with the even id in the sum, every layer",
    "rows whose two experts are 0 and 1, 2 and 3, or 4 and 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        ids = at.host(chosen)
        lost = (ids[..., :1] // 2 == ids[..., 1:] // 2) & (ids % 2 == 0)
        return clean(outputs, chosen, at.changed(shares, lambda value: np.where(lost, 0, value)))

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "second-choice-zero-is-none",
    "expert 0 as second choice is taken for an empty place and left out",
    OUT.format(0),
    "prefill",
    "expert 0's part of the sum, every layer",
    "rows whose second choice is expert 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        empty = at.host(chosen) == 0
        empty[..., 0] = False
        return clean(outputs, chosen, at.changed(shares, lambda value: np.where(empty, 0, value)))

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "padding-row-added-twice",
    "an expert's rows are padded to an even number by its last row again, and what that gives is added too",
    OUT.format(0),
    "prefill",
    "part of an expert in its last row's sum, twice as large, every layer",
    "the last row of an expert that an odd number of the pass' rows chooses",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        ids, twice = at.host(chosen), at.host(shares)
        logical = at.positions[:, None] != pipeline.target.trash
        for expert in range(outputs.shape[0]):
            rows, places = np.nonzero((ids[0] == expert) & logical)
            if len(rows) % 2:
                twice[0, rows[-1], places[-1]] *= 2
        return clean(outputs, chosen, at.array(twice, shares))

    alter(pipeline, "kernels.moe:mix", change)
