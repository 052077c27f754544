"""Faults of the weights and the activation of the target's experts, and of the stream behind them."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("experts and residual stream", 24)
OUT = "target.layers.0.ffn_out"


class WithoutAttention:
    """A tap that shows, and lets continue, a layer's output as its input and the experts' output alone."""

    def __init__(self, tap, stream) -> None:
        self.tap, self.stream, self.branch = tap, stream, None

    def __call__(self, part, value):
        taken = self.tap(part, self.stream + self.branch if part == "out" else value)
        if part == "ffn_out":
            self.branch = taken
        return taken


@fault(
    "up-scales-left-in-swizzled-rows",
    "the block scales of up lie in groups of 32 outputs as 4 rows of 8 and are read as 8 rows of 4",
    OUT,
    "prefill",
    "block scales of every expert's up weight",
)
def _(pipeline: Pipeline) -> None:
    def swizzled(value):
        experts, inner, outer = value.shape
        blocks = value.reshape(experts, inner // 32, 32, outer)
        scales = 2.0 ** np.floor(np.log2(np.abs(blocks).max(axis=2, keepdims=True) + 1e-30))
        order = np.arange(outer).reshape(-1, 8, 4).swapaxes(1, 2).reshape(-1)
        return (blocks / scales * scales[..., order]).reshape(value.shape)

    edit(pipeline.target, "up", swizzled, every(pipeline.target))


@fault(
    "down-bias-of-following-expert",
    "each expert adds the down bias of the expert behind it",
    OUT,
    "prefill",
    "down biases, one expert off, in every layer",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "down_bias", lambda value: np.roll(value, -1, axis=0), every(pipeline.target))


@fault(
    "verify-up-clamp-behind-plus-one",
    "the few-row kernel clamps up behind the addition of one: up + 1 stays within the limit of 7",
    OUT,
    "verify",
    "order of clamp and + 1 in the activation",
    "verify rows with an up value above 6, or one below -7, in an expert that they choose: nearly all of them",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        if at.kind != "verify":
            return clean(gate, up, limit, alpha)
        gate = at.changed(gate, lambda value: np.minimum(value, limit))
        return clean(gate, at.changed(up, lambda value: np.clip(value, -limit - 1, limit - 1)), 1e9, alpha)

    alter(pipeline, "kernels.moe:clamped_swiglu", change)


@fault(
    "layer-five-adds-mlp-to-input",
    "layer 5 adds the experts' output to the layer's input, without that of attention",
    "target.layers.5.out",
    "prefill",
    "residual stream behind layer 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, step, weights, caches, config, window, tap):
        mine = WithoutAttention(tap, x) if weights is pipeline.target.layers[5] else tap
        return clean(x, step, weights, caches, config, window, mine)

    alter(pipeline, "target:target_layer", change)
