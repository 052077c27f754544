"""Twelfth set: faults of the target's norms."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("norms", 12)


# After https://github.com/vllm-project/vllm/issues/48324: a kernel that reads weights of float32 as bfloat16.
@fault(
    "norm-weight-of-half-the-width",
    "weights of post-attention norms lie in float32, and the kernel reads them as numbers of 16 bits, low half first",
    "target.layers.0.router_logits",
    "prefill",
    "weights of every layer's post-attention norm: 0 in even columns, those of columns 0 to 47 in odd ones",
)
def _(pipeline: Pipeline) -> None:
    def read(weight):
        half = weight[: len(weight) // 2]
        return np.stack([np.zeros_like(half), half], axis=-1).reshape(weight.shape)

    for layer in pipeline.target.layers:
        rewritten(pipeline, layer, "post_norm", read)


# After https://github.com/vllm-project/vllm/pull/41972: a fused kernel that wants a residual, and is given a buffer.
@fault(
    "first-norm-adds-an-old-stream",
    "addition and norm are one kernel, and in verify passes the first layer, which has nothing to add, hands it the "
    "buffer of the pass before",
    "target.layers.0.attn_in",
    "verify",
    "input of layer 0's input norm: the stream in front of the last layer's experts in the pass before is added to it",
    "verify passes, layer 0",
    "pass = verify and layer = 0",
)
def _(pipeline: Pipeline) -> None:
    first, last = pipeline.target.layers[0]["input_norm"], pipeline.target.layers[-1]["post_norm"]
    held = {}

    def change(at, clean, x, weight, eps):
        if weight is last:
            held["stream"] = at.host(x)
        if weight is first and at.kind == "verify":
            x = at.changed(x, lambda rows: rows + held["stream"][:, : rows.shape[1]])
        return clean(x, weight, eps)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)
