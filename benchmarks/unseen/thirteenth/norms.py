"""Thirteenth set: a fault of the target's norms."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("norms", 13)


# Of the class of https://github.com/vllm-project/vllm/pull/44692: a sum in a software pipeline, one stage too deep.
@fault(
    "last-stage-squared-twice",
    "input norms add squares in a pipeline of three tiles of 32 columns, which drains its last tile twice",
    "target.layers.0.attn_in",
    "prefill",
    "root mean square of every layer's input norm: the squares of columns 64 to 95 count twice",
)
def _(pipeline: Pipeline) -> None:
    weights = [layer["input_norm"] for layer in pipeline.target.layers]

    def change(at, clean, x, weight, eps):
        if not any(weight is one for one in weights):
            return clean(x, weight, eps)

        def norm(rows):
            squares = np.square(rows)
            total = squares.sum(axis=-1, keepdims=True) + squares[..., 64:].sum(axis=-1, keepdims=True)
            return rows / np.sqrt(total / rows.shape[-1] + np.float32(eps)) * at.host(weight)

        return at.changed(x, norm)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)
