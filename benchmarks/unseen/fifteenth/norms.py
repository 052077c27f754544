"""Faults of the target's norms and of its residual stream."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("norms and residual", 15)


@fault(
    "inverse-rms-in-bfloat16",
    "the reciprocal of the root mean square is rounded to bfloat16 before it multiplies",
    "target.layers.0.attn_in",
    "prefill",
    "norms of the target's layers: reciprocal root rounded to bfloat16",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        scale = at.host(weight)

        def coarse(value):
            inverse = 1 / np.sqrt(np.mean(np.square(value), axis=-1, keepdims=True) + eps)
            return value * inverse.astype(bfloat16).astype(np.float32) * scale

        return at.changed(x, coarse)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)


@fault(
    "residual-truncated-in-verify",
    "the fused residual addition of verify passes cuts its sum to bfloat16",
    "target.layers.0.out",
    "verify",
    "residual stream behind every layer: cut to bfloat16",
    "verify passes",
    "pass = verify",
    "float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, held, x, step, tap):
        def cutting(part, value):
            return tap(part, at.changed(value, _cut) if part == "out" else value)

        return clean(held, x, step, cutting if at.kind == "verify" else tap)

    replaced(pipeline, pipeline.target, "layer", change)


def _cut(value):
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)
