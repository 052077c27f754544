"""Eleventh set: faults of the drafter's layers."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels.linear import linear, row_parallel
from parity.device.pipeline import Pipeline

fault = Part("draft layers", 11)


# Of another family's setting, `scale_depth`: branches that are scaled by the number of layers.
@fault(
    "branches-scaled-by-depth",
    "what attention and feed-forward add to the drafter's stream is scaled by 1.4 over the root of its 4 layers",
    "drafter.layers.0.ffn_out",
    "prefill",
    "residual additions in every drafter layer: 0.7 of attention's and of the feed-forward's output",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        *inputs, tap = given

        def show(part, value):
            made = tap(part, value)
            branch = part in ("attn_out", "ffn_out")
            return at.changed(made, lambda rows: rows * np.float32(0.7)) if branch else made

        return clean(*inputs, show)

    for layer in ("midlayer", "plain_layer"):
        alter(pipeline, f"drafter:{layer}", change)


# From the equations: an activation of what is multiplied, not a product with what is activated.
@fault(
    "silu-of-the-product",
    "the drafter's feed-forward multiplies gate by up and activates the product",
    "drafter.layers.0.ffn_out",
    "prefill",
    "activation of every drafter layer: silu(gate up), where silu(gate) up is meant",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        gate, up = (at.host(linear(x, weights[name])) for name in ("gate", "up"))
        product = gate * up
        return row_parallel(at.array(product / (1 + np.exp(-product)), x), weights["down"])

    alter(pipeline, "kernels.drafter_layer:_mlp", change)
