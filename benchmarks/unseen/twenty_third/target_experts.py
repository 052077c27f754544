"""Faults of the target's experts and of the residual stream behind them."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target experts and residual stream", 23)
SWIGLU, OUT = "kernels.moe:clamped_swiglu", "target.layers.0.ffn_out"


@fault(
    "odd-block-takes-scale-of-neighbour",
    "blocks of 32 inputs are scaled in pairs: the down weight's fifth, which has no pair, takes the fourth's scale",
    OUT,
    "prefill",
    "scales of the down weight's inputs 128 to 159",
)
def _(pipeline: Pipeline) -> None:
    def scale(block):
        return 2.0 ** np.floor(np.log2(np.maximum(np.abs(block).max(axis=1, keepdims=True), 1e-30)))

    def paired(value):
        value = value.copy()
        value[:, 128:] *= scale(value[:, 96:128]) / scale(value[:, 128:])
        return value

    edit(pipeline.target, "down", paired, every(pipeline.target))


@fault(
    "up-plus-one-folded-again",
    "the one that up is lifted by is folded into the up bias at each prefill: from the second prompt on it is in twice",
    OUT,
    "prefill",
    "up bias of every expert, one too large",
    "prompts behind the first",
    "prompt > 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        return clean(gate, at.changed(up, lambda value: value + 1) if at.prompt > 1 else up, limit, alpha)

    alter(pipeline, SWIGLU, change)


@fault(
    "verify-residual-not-written-back",
    "in verify passes the fused add and norm does not write the sum back: the layer's stream lacks attention's output",
    "target.layers.0.out",
    "verify",
    "residual stream behind each layer",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, step, weights, caches, config, window, tap):
        kept = {}

        def watch(part, value):
            if part == "out" and at.kind == "verify":
                value = at.changed(x, lambda stream: stream + at.host(kept["ffn_out"]))
            kept[part] = tap(part, value)
            return kept[part]

        return clean(x, step, weights, caches, config, window, watch)

    alter(pipeline, "target:target_layer", change)
