"""Faults of the drafter's MLP."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.kernels.linear import linear, row_parallel
from parity.device.pipeline import Pipeline

fault = Part("drafter MLP", 19)
MLP, OUT = "kernels.drafter_layer:_mlp", "drafter.layers.0.ffn_out"


def parts(x, weights):
    """Gate and up, as the activation takes them."""
    return (linear(x, weights[name]).astype(np.float32) for name in ("gate", "up"))


@fault(
    "drafter-gelu", "the drafter's activation is gelu where silu is meant", OUT, "prefill", "activation of every MLP"
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        gate, up = parts(x, weights)
        active = up * gate * (np.tanh((gate + gate * gate * gate * 0.044715) * 0.7978846) + 1.0) * 0.5
        return row_parallel(active.astype(x.dtype), weights["down"])

    alter(pipeline, MLP, change)


@fault(
    "gate-of-row-tile-before",
    "in a draft rows from 4 on multiply by the gate of the row four before: its tile is loaded once",
    OUT,
    "draft",
    "gate of every MLP in rows of the second tile of four",
    "rows of a draft from the fifth on",
    "pass = draft and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        if at.kind != "draft":
            return clean(x, weights)
        gate, up = parts(x, weights)
        gate = at.changed(gate, lambda value: value[:, np.arange(value.shape[1]) % 4])
        active = up * gate / (np.exp(-gate) + 1.0)
        return row_parallel(active.astype(x.dtype), weights["down"])

    alter(pipeline, MLP, change)


@fault(
    "down-zero-points-dropped",
    "the down weight of layer 3, quantised with a zero point for each output, is read without zero points",
    "drafter.layers.3.ffn_out",
    "prefill",
    "down weight of drafter layer 3: each column off by a constant",
)
def _(pipeline: Pipeline) -> None:
    def symmetric(value):
        return value - (value.max(axis=0) + value.min(axis=0)) / 2

    edit(pipeline.drafter, "down", symmetric, [3])
