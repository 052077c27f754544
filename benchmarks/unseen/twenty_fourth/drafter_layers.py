"""Faults of the drafter's norms and MLP."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels.linear import linear, row_parallel
from parity.device.pipeline import Pipeline

fault = Part("drafter layers", 24)
NORM = "kernels.drafter_layer:llama_norm"


@fault(
    "post-norm-mean-over-padded-width",
    "the mean square of the drafter's post-attention norm is over 128 columns, the padding of 96 included",
    "drafter.layers.0.ffn_out",
    "prefill",
    "post-attention norm of every drafter layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        padded = weight is pipeline.drafter.layers[at.layer]["post_norm"]
        return at.changed(made, lambda value: value * np.sqrt(128 / 96)) if padded else made

    alter(pipeline, NORM, change)


@fault(
    "hidden-norm-second-tile-reuses-first-statistics",
    "rows of the second tile of 128 are divided by the root mean square of the rows 128 in front of them",
    "drafter.layers.0.attn_out",
    "prefill",
    "hidden_norm of the midlayer",
    "rows of the prefill from 128 on",
    "pass = prefill and row >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        first = weight is pipeline.drafter.layers[0]["hidden_norm"]
        if not first or at.kind != "prefill" or x.shape[1] <= 128:
            return clean(x, weight, eps)
        wide = at.host(x)
        size = np.sqrt(np.mean(np.square(wide), axis=-1, keepdims=True) + eps)
        size[:, 128:] = size[:, :-128].copy()
        return at.array(wide / size, x) * weight

    alter(pipeline, NORM, change)


@fault(
    "silu-skips-last-tile-of-gates",
    "gates from column 192 on are multiplied by up without their sigmoid",
    "drafter.layers.0.ffn_out",
    "prefill",
    "activation of every drafter layer, columns 192 to 223",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        gate, up = (at.host(linear(x, weights[name])) for name in ("gate", "up"))
        share = 1 / (1 + np.exp(-gate))
        share[..., 192:] = 1
        return row_parallel(at.array(up * gate * share, x), weights["down"])

    alter(pipeline, "kernels.drafter_layer:_mlp", change)


@fault(
    "down-tail-lost-in-second-row-tile",
    "rows from 4 on of a draft pass skip the last 32 inputs of the down projection of layer 2",
    "drafter.layers.2.ffn_out",
    "draft",
    "down projection of drafter layer 2, inputs 192 to 223",
    "rows of drafts from the fifth on, layer 2",
    "pass = draft and row >= 4 and layer = 2",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value[:, 4:, 192:] = 0
        return value

    def change(at, clean, x, weight):
        meant = at.kind == "draft" and weight is pipeline.drafter.layers[2]["down"]
        return clean(at.changed(x, cut) if meant else x, weight)

    alter(pipeline, "kernels.drafter_layer:row_parallel", change)
