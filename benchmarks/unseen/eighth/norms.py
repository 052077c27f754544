"""Eighth set: faults of the target's norms."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("norms", 8)
NORM = "kernels.target_layer:gpt_oss_norm"
HALF_MAX = np.float32(65504)


# From the equations: a scalar that a block shares and each of its rows should have.
@fault(
    "one-root-for-four-rows",
    "layer 4's post-attention norm runs four rows a block, and all take the root of the block's first",
    "target.layers.4.router_logits",
    "prefill",
    "root mean square of layer 4's post-attention norm: that of the row whose number is the multiple of 4 before",
    "rows of a pass whose number is no multiple of 4, layer 4",
    "row % 4 > 0 and layer = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if weight is not pipeline.target.layers[4]["post_norm"]:
            return clean(x, weight, eps)
        wide = at.host(x)
        root = np.sqrt(np.square(wide).mean(axis=-1, keepdims=True) + np.float32(eps))
        shared = root[:, np.arange(wide.shape[1]) // 4 * 4]
        return at.array(wide / shared * at.host(weight), x)

    alter(pipeline, NORM, change)


# From the equations: squares of a massive activation are larger than float16 can be.
@fault(
    "squares-saturate-in-half",
    "the input norms of the target's layers add squares in float16 and stay at its largest number, 65504",
    "target.layers.5.attn_in",
    "prefill",
    "root mean square of input norms from layer 5 on, where squares sum to more than 65504: it is too small",
    "row 3 of a prompt, the one of its massive activation, layers from 5 on",
    "position = 3 and layer >= 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        total = np.square(at.host(x)).sum(axis=-1, keepdims=True)
        if weight is not pipeline.target.layers[at.layer]["input_norm"] or total.max() <= HALF_MAX:
            return made
        return at.changed(made, lambda rows: rows * np.sqrt(np.maximum(total, HALF_MAX) / HALF_MAX))

    alter(pipeline, NORM, change)
