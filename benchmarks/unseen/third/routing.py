"""Third set: faults of the target's router."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target experts", 3)
TOP_K = "kernels.moe:top_k"
EXPERTS = 6


@fault(
    "one-expert-of-each-half",
    "the router of layer 3 takes the best expert of each half of them",
    "target.layers.3.experts",
    "prefill",
    "choice of layer 3's experts over two halves",
    "rows whose two best experts are in the same half, layer 3",
    "layer = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        made = clean(logits, k)
        if at.layer != 3:
            return made
        wide = at.host(logits)
        best = np.stack([wide[..., :3].argmax(axis=-1), 3 + wide[..., 3:].argmax(axis=-1)], axis=-1)
        first, second = np.moveaxis(np.take_along_axis(wide, best, axis=-1), -1, 0)
        return at.array(np.where((first >= second)[..., None], best, best[..., ::-1]), made)

    alter(pipeline, TOP_K, change)


@fault(
    "shares-without-router-bias",
    "layer 2's shares are the softmax of router logits without their bias",
    "target.layers.2.ffn_out",
    "prefill",
    "shares of layer 2's experts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, logits, *rest):
        bias = pipeline.target.layers[2]["router_bias"]
        return clean(x, at.changed(logits, lambda value: value - at.host(bias)) if at.layer == 2 else logits, *rest)

    alter(pipeline, "kernels.moe:mixture", change)


@fault(
    "router-input-rounded",
    "the router of layer 3 takes its input in bfloat16",
    "target.layers.3.router_logits",
    "prefill",
    "input of layer 3's router",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        mine = weight is pipeline.target.layers[3]["router"]
        return clean(at.changed(x, lambda value: value.astype(bfloat16)) if mine else x, weight, bias)

    alter(pipeline, "kernels.moe:linear", change)


@fault(
    "padded-experts-chosen",
    "layer 0's router logits are padded to eight with zeros, and a padded choice is taken for the last expert",
    "target.layers.0.experts",
    "prefill",
    "choice of layer 0's experts",
    "rows whose second largest router logit is below zero, layer 0",
    "layer = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        if at.layer != 0:
            return clean(logits, k)
        padded = at.array(np.pad(at.host(logits), ((0, 0), (0, 0), (0, 8 - EXPERTS))), logits)
        return at.changed(clean(padded, k), lambda value: np.minimum(value, EXPERTS - 1))

    alter(pipeline, TOP_K, change)
