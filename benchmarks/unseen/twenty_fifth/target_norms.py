"""Faults of the target's norms within layers and of its residual stream."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target norms and residual", 25)
NORM = "kernels.target_layer:gpt_oss_norm"


@fault(
    "mean-square-of-post-norm-over-padded-width",
    "the norm before the experts divides its sum of squares by the padded width 128, not by 96",
    "target.layers.0.router_logits",
    "prefill",
    "mean square of the norm before the experts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        padded = weight is at.pipeline.target.layers[at.layer]["post_norm"]
        return at.changed(made, lambda value: value * np.sqrt(128 / 96)) if padded else made

    alter(pipeline, NORM, change)


@fault(
    "verify-rows-behind-fourth-share-its-rms",
    "the norm before attention works on tiles of 4 rows and scales rows from 4 on by the root mean square of row 3",
    "target.layers.0.attn_in",
    "verify",
    "root mean square of the norm before attention",
    "rows from 4 on of verify passes",
    "pass = verify and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        if at.kind != "verify" or weight is not at.pipeline.target.layers[at.layer]["input_norm"] or x.shape[1] < 5:
            return made
        size = np.sqrt(np.square(at.host(x)).mean(axis=-1, keepdims=True) + eps)

        def shared(value):
            return np.concatenate([value[:, :4], value[:, 4:] * size[:, 4:] / size[:, 3:4]], axis=1)

        return at.changed(made, shared)

    alter(pipeline, NORM, change)


@fault(
    "attention-branch-joins-residual-twice-in-layer-five",
    "layer 5 adds attention's output to the residual stream once more behind the experts",
    "target.layers.5.out",
    "prefill",
    "residual stream behind layer 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, held, x, step, tap):
        branch = []

        def watch(part, value):
            if part == "out":
                value = at.changed(value, lambda stream: stream + at.host(branch[0]))
            taken = tap(part, value)
            if part == "attn_out":
                branch.append(taken)
            return taken

        return clean(held, x, step, watch if held == 5 else tap)

    replaced(pipeline, pipeline.target, "layer", change)
