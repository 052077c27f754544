"""Faults of the drafter's MLP."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, scaled
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.kernels.linear import linear, row_parallel
from parity.device.pipeline import Pipeline

fault = Part("drafter MLP", 21)


@fault(
    "gelu-in-drafter",
    "the drafter's gate goes through gelu, in its tanh form, where silu is meant",
    "drafter.layers.0.ffn_out",
    "prefill",
    "activation of the drafter's MLP in every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        gate, up = (at.host(linear(x, weights[name])) for name in ("gate", "up"))
        active = up * 0.5 * gate * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
        return row_parallel(at.array(active, x), weights["down"])

    alter(pipeline, "kernels.drafter_layer:_mlp", change)


@fault(
    "down-rows-behind-192-lost",
    "the last half tile of 64 inputs of layer 2's down projection is left out",
    "drafter.layers.2.ffn_out",
    "prefill",
    "the down projection of the drafter's layer 2, inputs 192 to 223",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "down", lambda value: scaled(slice(192, None), 0.0)(value.T).T, [2])
