"""Faults of the drafter's norms and MLP."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.kernels.linear import linear
from parity.device.pipeline import Pipeline

fault = Part("drafter norms and MLP", 26)


@fault(
    "post-norm-averages-over-the-padded-width",
    "the norm in front of layer 2's MLP divides its sum of squares by 128, the padded width, not by 96",
    "drafter.layers.2.ffn_out",
    "prefill",
    "post-attention norm of layer 2, too large by sqrt(128 / 96)",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "post_norm", lambda weight: weight * (128 / 96) ** 0.5, [2])


@fault(
    "hard-swish-stands-for-silu-in-last-layer",
    "layer 3's MLP takes the piecewise linear hard swish for silu",
    "drafter.layers.3.ffn_out",
    "prefill",
    "activation of layer 3's MLP",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        if at.layer != 3:
            return clean(x, weights)
        gate, up = (linear(x, weights[name]).astype(np.float32) for name in ("gate", "up"))
        active = up * gate * np.minimum(np.maximum(gate + 3, 0), 6) / 6
        return linear(active.astype(x.dtype), weights["down"])

    alter(pipeline, "kernels.drafter_layer:_mlp", change)


@fault(
    "input-norm-weight-of-the-layer-before",
    "the norm in front of layer 2's attention has layer 1's weight",
    "drafter.layers.2.attn_out",
    "prefill",
    "input norm's weight of layer 2",
)
def _(pipeline: Pipeline) -> None:
    layers = pipeline.drafter.layers
    layers[2]["input_norm"] = layers[1]["input_norm"]


@fault(
    "down-of-the-partial-row-tile-half-summed",
    "in layer 1 the rows of a prefill's last, partial tile of 32 get the first 128 inputs of down alone",
    "drafter.layers.1.ffn_out",
    "prefill",
    "down projection of layer 1, inputs 128 to 223",
    "prefill rows behind the last full tile of 32 rows, layer 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        made = clean(x, weights)
        if at.kind != "prefill" or at.layer != 1:
            return made
        rows = int((at.positions != pipeline.drafter.trash).sum())

        def halved(down):
            down[128:] = 0
            return down

        half = at.host(clean(x, weights | {"down": at.changed(weights["down"], halved)}))

        def joined(value):
            value[:, rows // 32 * 32 :] = half[:, rows // 32 * 32 :]
            return value

        return at.changed(made, joined)

    alter(pipeline, "kernels.drafter_layer:_mlp", change)
