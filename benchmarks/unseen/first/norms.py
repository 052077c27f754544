"""Faults of the target's norms."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, scaled
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("norms and residual")
NORM = "kernels.target_layer:gpt_oss_norm"


@fault(
    "post-norm-of-the-layer-before",
    "layer 4's post-attention norm has layer 3's weight",
    "target.layers.4.router_logits",
    "prefill",
    "post-attention norm weight of layer 4",
)
def _(pipeline: Pipeline) -> None:
    layers = pipeline.target.layers
    layers[4]["post_norm"] = layers[3]["post_norm"]


@fault(
    "mean-over-first-tile",
    "layer 6's input norm takes the mean square of the first 64 of 96 columns",
    "target.layers.6.attn_in",
    "prefill",
    "input norm of layer 6",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if weight is not pipeline.target.layers[6]["input_norm"]:
            return clean(x, weight, eps)
        scale = at.host(weight)

        def tiled(value):
            return value / np.sqrt(np.mean(np.square(value[..., :64]), axis=-1, keepdims=True) + eps) * scale

        return at.changed(x, tiled)

    alter(pipeline, NORM, change)


@fault(
    "final-norm-tail-of-ones",
    "the final norm's weight is one from column 64 on",
    "target.pre_head_hidden",
    "prefill",
    "final norm weight, columns 64 to 95",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "norm", lambda value: np.where(np.arange(96) < 64, value, 1.0))


@fault(
    "final-norm-of-row-before",
    "the final norm divides the last verify row by the row before's root mean square",
    "target.pre_head_hidden",
    "verify",
    "final norm",
    "last row of verify passes",
    "pass = verify and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        if at.kind != "verify" or x.shape[1] < 2:
            return made
        size = np.sqrt(np.mean(np.square(at.host(x)), axis=-1, keepdims=True))

        def stale(value):
            value[:, -1] *= size[:, -1] / size[:, -2]
            return value

        return at.changed(made, stale)

    alter(pipeline, "target:gpt_oss_norm", change)


@fault(
    "input-norm-eps-after-rejection",
    "norms take an eps of 0.05 in the round behind one that accepted nothing",
    "target.layers.0.attn_in",
    "verify",
    "eps of every norm of the target's layers",
    "verify passes of a round behind one that accepted nothing",
    "pass = verify and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        return clean(x, weight, 0.05 if at.kind == "verify" and at.accepted == 0 else eps)

    alter(pipeline, NORM, change)


@fault(
    "norm-weight-in-eighths",
    "the post-attention norm weights of layers 5 to 7 are kept in fp8 (e5m2)",
    "target.layers.5.router_logits",
    "prefill",
    "post-attention norm weights of layers 5 to 7",
    "layers from 5 on",
    "layer >= 5",
)
def _(pipeline: Pipeline) -> None:
    from ml_dtypes import float8_e5m2

    edit(pipeline.target, "post_norm", lambda value: value.astype(float8_e5m2).astype(np.float32), range(5, 8))


@fault(
    "input-norm-columns-doubled",
    "columns 31 and 32 of layer 7's input norm weight are twice what they are",
    "target.layers.7.attn_in",
    "prefill",
    "input norm weight of layer 7, columns 31 and 32",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "input_norm", scaled([31, 32], 2.0), [7])
