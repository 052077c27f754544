"""Tenth set: faults of the experts and of the router."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("experts", 10)


# From the equations: a kernel for few rows, and one row more than it has registers for.
@fault(
    "third-row-of-an-expert",
    "in verify passes an expert takes two rows, and a third one and those behind it get the second one's output",
    "target.layers.0.ffn_out",
    "verify",
    "output of an expert that three rows or more chose, from the third of them on: that of the second",
    "verify rows whose expert two earlier rows of the pass chose too",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        ids = at.host(chosen)[0]

        def repeat(made):
            for expert in range(len(made)):
                mine = np.flatnonzero((ids == expert).any(axis=-1))
                if len(mine) > 2:
                    made[expert, 0, mine[2:]] = made[expert, 0, mine[1]]
            return made

        return clean(at.changed(outputs, repeat) if at.kind == "verify" else outputs, chosen, shares)

    alter(pipeline, "kernels.moe:mix", change)


# From the equations: a function that hardware has, for one that it has not.
@fault(
    "hard-sigmoid",
    "the experts' sigmoid is the straight line x / 6 + 1/2, cut off at 0 and 1",
    "target.layers.0.ffn_out",
    "prefill",
    "the sigmoid in every expert's activation: straight between -3 and 3; clamps and up + 1 are right",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        wide = np.minimum(at.host(gate), np.float32(limit))
        lifted = np.clip(at.host(up), -limit, limit) + np.float32(1)
        return at.array((lifted * wide * np.clip(wide * alpha / 6 + 0.5, 0, 1)).astype(np.float32), gate)

    alter(pipeline, "kernels.moe:clamped_swiglu", change)


# From the equations: a buffer for the next layer's parameters, and one of them that comes too late.
@fault(
    "up-biases-a-layer-late",
    "biases of up are fetched while the layer before runs, into a buffer that is still that layer's",
    "target.layers.1.ffn_out",
    "prefill",
    "up biases of every expert in layers 1 to 7: those of the layer before",
)
def _(pipeline: Pipeline) -> None:
    layers = pipeline.target.layers
    held = [layer["up_bias"] for layer in layers]
    for layer, before in zip(layers[1:], held, strict=False):
        layer["up_bias"] = before
