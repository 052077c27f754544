"""Thirteenth set: faults of the drafter's feed-forward."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.kernels.linear import linear, row_parallel
from parity.device.kernels.moe import clamped_swiglu
from parity.device.pipeline import Pipeline

fault = Part("draft layers", 13)


# After https://github.com/vllm-project/vllm/pull/22951: one activation kernel for columns in turn and for halves.
@fault(
    "gate-and-up-read-in-turn",
    "gate and up of the drafter are one matrix of two halves, and the activation reads gate and up column by column",
    "drafter.layers.0.ffn_out",
    "prefill",
    "gate and up of every drafter layer: the even and the odd columns of gate and up side by side",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)
    for layer in pipeline.drafter.layers:
        fused = np.concatenate([at.host(layer["gate"]), at.host(layer["up"])], axis=-1)
        layer["gate"], layer["up"] = (at.array(fused[:, first::2], layer["gate"]) for first in (0, 1))


# From the equations: a feed-forward that is configured once for both models.
@fault(
    "activation-of-the-target",
    "the drafter's feed-forward has the activation of the target's experts",
    "drafter.layers.0.ffn_out",
    "prefill",
    "activation of every drafter layer: the target's, with up + 1, a slope of 1.702 and clamps at 7",
)
def _(pipeline: Pipeline) -> None:
    config = pipeline.target.config

    def change(at, clean, x, weights):
        gate, up = (linear(x, weights[name]) for name in ("gate", "up"))
        return row_parallel(clamped_swiglu(gate, up, config.limit, config.alpha), weights["down"])

    alter(pipeline, "kernels.drafter_layer:_mlp", change)
