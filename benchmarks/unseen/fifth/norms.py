"""Fifth set: faults of norms."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("norms and residual", 5)
NORM = "kernels.target_layer:gpt_oss_norm"
TWELVE_BITS = np.uint32(0xFFFFF800)
"""What a float32 of twelve bits of mantissa keeps."""


@fault(
    "halves-normed-together",
    "the midlayer norms embedding and hidden as one row of twice the width",
    "drafter.layers.0.attn_out",
    "prefill",
    "mean square of the midlayer's two input norms",
)
def _(pipeline: Pipeline) -> None:
    given = {}

    def midlayer(at, clean, embedded, fused, *rest):
        given["mean"] = sum(np.square(at.host(one)).mean(axis=-1, keepdims=True) for one in (embedded, fused)) / 2
        return clean(embedded, fused, *rest)

    def change(at, clean, x, weight, eps):
        mine = pipeline.drafter.layers[0]
        if weight is not mine["hidden_norm"] and weight is not mine["input_norm"]:
            return clean(x, weight, eps)
        return at.array(at.host(x) / np.sqrt(given["mean"] + np.float32(eps)) * at.host(weight), x)

    alter(pipeline, "drafter:midlayer", midlayer)
    alter(pipeline, "kernels.drafter_layer:llama_norm", change)


@fault(
    "root-from-before-attention",
    "the post-attention norm of layer 5 divides a verify row by the root that its input norm found",
    "target.layers.5.router_logits",
    "verify",
    "root mean square of layer 5's post-attention norm",
    "verify passes, layer 5",
    "pass = verify and layer = 5",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, x, weight, eps):
        mine = pipeline.target.layers[5]
        if weight is mine["input_norm"]:
            held["root"] = np.sqrt(np.square(at.host(x)).mean(axis=-1, keepdims=True) + np.float32(eps))
        if weight is not mine["post_norm"] or at.kind != "verify":
            return clean(x, weight, eps)
        return at.array(at.host(x) / held["root"] * at.host(weight), x)

    alter(pipeline, NORM, change)


@fault(
    "inverse-root-of-twelve-bits",
    "layer 6's input norm multiplies by an approximate inverse root of twelve bits, without a step of Newton's",
    "target.layers.6.attn_in",
    "prefill",
    "inverse root of layer 6's input norm",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if weight is not pipeline.target.layers[6]["input_norm"]:
            return clean(x, weight, eps)
        wide = at.host(x)
        inverse = 1 / np.sqrt(np.square(wide).mean(axis=-1, keepdims=True) + np.float32(eps))
        short = (inverse.astype(np.float32).view(np.uint32) & TWELVE_BITS).view(np.float32)
        return at.array(wide * short * at.host(weight), x)

    alter(pipeline, NORM, change)
