"""Eighth set: a fault of the drafter's layers."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels.linear import linear, row_parallel
from parity.device.pipeline import Pipeline

fault = Part("draft layers", 8)


# From the equations: a gated linear unit of the first kind.
@fault(
    "sigmoid-without-its-gate",
    "the drafter's feed-forward multiplies up by sigmoid(gate), not by gate sigmoid(gate)",
    "drafter.layers.0.ffn_out",
    "prefill",
    "activation of every drafter layer: the factor gate is missing",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        gate, up = (at.host(linear(x, weights[name])) for name in ("gate", "up"))
        return row_parallel(at.array(up / (1 + np.exp(-gate)), x), weights["down"])

    alter(pipeline, "kernels.drafter_layer:_mlp", change)
