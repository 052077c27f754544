"""Faults of the target's norms."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("norms and residual", 16)
NORM = "kernels.target_layer:gpt_oss_norm"


@fault(
    "inverse-rms-of-8-bits",
    "norms of the target's layers round the inverse root mean square to bfloat16 before they multiply",
    "target.layers.0.attn_in",
    "prefill",
    "inverse root mean square in the norms of every layer",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        scale = at.host(weight)

        def rounded(value):
            inverse = 1 / np.sqrt(np.mean(np.square(value), axis=-1, keepdims=True) + eps)
            return value * inverse.astype(bfloat16).astype(np.float32) * scale

        return at.changed(x, rounded)

    alter(pipeline, NORM, change)


@fault(
    "rms-of-the-tile-before",
    "input norms divide prefill rows of the second tile of 128 by the root mean square of the row 128 before",
    "target.layers.0.attn_in",
    "prefill",
    "input norm of every layer, root mean square",
    "prefill rows at positions from 128 on",
    "pass = prefill and position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        if at.kind != "prefill" or weight is not pipeline.target.layers[at.layer]["input_norm"]:
            return made
        size = np.sqrt(np.mean(np.square(at.host(x)), axis=-1, keepdims=True) + eps)

        def stale(value):
            value[:, 128:] *= size[:, 128:] / size[:, : max(size.shape[1] - 128, 0)]
            return value

        return at.changed(made, stale)

    alter(pipeline, NORM, change)
