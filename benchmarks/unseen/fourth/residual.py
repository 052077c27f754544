"""Fourth set: faults of norms, residual and embedding."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("norms and residual", 4)
NORM = "kernels.target_layer:gpt_oss_norm"
PLACEHOLDER = 1275


@fault(
    "reciprocal-width-rounded",
    "layer 4's post-attention norm takes the mean square by a factor of 1/96 in bfloat16",
    "target.layers.4.router_logits",
    "prefill",
    "mean square of layer 4's post-attention norm",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if weight is not pipeline.target.layers[4]["post_norm"]:
            return clean(x, weight, eps)
        wide = at.host(x)
        part = np.float32(bfloat16(1 / wide.shape[-1]))
        mean = np.square(wide).sum(axis=-1, keepdims=True) * part
        return at.array(wide / np.sqrt(mean + np.float32(eps)) * at.host(weight), x)

    alter(pipeline, NORM, change)


@fault(
    "normed-value-as-residual",
    "layer 5 adds its experts' output to their normed input, not to the stream",
    "target.layers.5.out",
    "prefill",
    "residual behind layer 5's experts",
)
def _(pipeline: Pipeline) -> None:
    held_back = {}

    def norm(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        if weight is pipeline.target.layers[5]["post_norm"]:
            held_back["normed"] = at.host(made)
        return made

    def change(at, clean, held, x, step, tap):
        def show(part, value):
            if part == "out":
                value = at.array(held_back["normed"] + held_back["ffn"], value)
            taken = tap(part, value)
            if part == "ffn_out":
                held_back["ffn"] = at.host(taken)
            return taken

        return clean(held, x, step, show if held == 5 else tap)

    alter(pipeline, NORM, norm)
    replaced(pipeline, pipeline.target, "layer", change)


@fault(
    "placeholder-embedded-as-the-mean",
    "the placeholder's embedding is the mean of all others, as a token that was added has it",
    "drafter.layers.0.attn_out",
    "draft",
    "the drafter's embedding of the placeholder, 1275",
    "masked rows",
)
def _(pipeline: Pipeline) -> None:
    def added(value):
        value[PLACEHOLDER] = np.delete(value, PLACEHOLDER, axis=0).mean(axis=0)
        return value

    edit(pipeline.drafter, "embed", added)
