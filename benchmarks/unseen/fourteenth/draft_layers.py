"""Fourteenth set: a fault of the drafter's feed-forward."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels.linear import linear, row_parallel
from parity.device.pipeline import Pipeline

fault = Part("draft layers", 14)


# From the equations: an activation of its own, which stores what it makes.
@fault(
    "silu-stored-in-bfloat16",
    "silu of gate is a kernel of its own, which stores bfloat16, before up multiplies",
    "drafter.layers.0.ffn_out",
    "prefill",
    "activation of every drafter layer: silu(gate) rounded to bfloat16 before the product with up",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        gate, up = (at.host(linear(x, weights[name])) for name in ("gate", "up"))
        stored = (gate / (1 + np.exp(-gate))).astype(ml_dtypes.bfloat16).astype(np.float32)
        return row_parallel(at.array(stored * up, x), weights["down"])

    alter(pipeline, "kernels.drafter_layer:_mlp", change)
