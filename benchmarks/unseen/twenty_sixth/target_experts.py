"""Faults of the experts' weights, biases and activation."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target experts", 26)
ACTIVATION = "kernels.moe:clamped_swiglu"


def scales(value):
    """The power of two that MXFP4 keeps of each block of 32 inputs: [E, in / 32, 1, out]."""
    blocks = np.abs(value.reshape(len(value), -1, 32, value.shape[-1])).max(axis=2, keepdims=True)
    return 2.0 ** (np.floor(np.log2(np.maximum(blocks, 1e-30))) - 2)


@fault(
    "smallest-mxfp4-code-becomes-zero",
    "the decoder of MXFP4 takes the subnormal code, half a scale, for zero in the down weights",
    "target.layers.0.ffn_out",
    "prefill",
    "down weights of less than three quarters of their block's scale, in every layer",
)
def _(pipeline: Pipeline) -> None:
    def flushed(value):
        blocks = value.reshape(len(value), -1, 32, value.shape[-1])
        return np.where(np.abs(blocks) < 0.75 * scales(value), 0, blocks).reshape(value.shape)

    edit(pipeline.target, "down", flushed, every(pipeline.target))


@fault(
    "gate-scales-read-unswizzled-once",
    "the gate's block scales of layer 4 are swizzled in groups of 4 by 8 outputs, and read as if they were not",
    "target.layers.4.ffn_out",
    "prefill",
    "order of the gate's scales along its outputs in layer 4",
)
def _(pipeline: Pipeline) -> None:
    def swizzled(value):
        mine = scales(value)
        other = mine.reshape(*mine.shape[:3], -1, 4, 8).swapaxes(-1, -2).reshape(mine.shape)
        return (value.reshape(len(value), -1, 32, value.shape[-1]) * (other / mine)).reshape(value.shape)

    edit(pipeline.target, "gate", swizzled, [4])


@fault(
    "down-bias-by-rank-not-expert",
    "the down bias is looked up by the rank of the choice, 0 or 1, where the expert's id is meant",
    "target.layers.0.ffn_out",
    "prefill",
    "down bias of every chosen expert in every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        bias, ids = at.host(pipeline.target.layers[at.layer]["down_bias"]), at.host(chosen)
        wrong = bias[np.arange(ids.shape[-1])] - bias[ids]
        extra = np.sum(wrong * at.host(shares)[..., None], axis=2)
        return at.changed(clean(outputs, chosen, shares), lambda value: value + extra)

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "few-row-experts-quantise-activations",
    "the experts' kernel for few rows takes the activation in front of the down projection in fp8 (e4m3)",
    "target.layers.0.ffn_out",
    "verify",
    "activation of every expert in every layer",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        made = clean(*given)
        narrow = at.kind == "verify"
        return at.changed(made, lambda value: value.astype(float8_e4m3fn).astype(np.float32)) if narrow else made

    alter(pipeline, ACTIVATION, change)
