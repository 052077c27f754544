"""Faults of the target's projections and of its rotation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import rotate
from parity.device.pipeline import Pipeline

fault = Part("target attention", 18)
LINEAR = "kernels.target_layer:linear"


@fault(
    "yarn-from-the-longest-context",
    "YaRN's ramp takes max_position_embeddings, 512, for the original context, which is 64",
    "target.layers.0.q",
    "prefill",
    "YaRN's original context",
)
def _(pipeline: Pipeline) -> None:
    pipeline.target.turn(replace(pipeline.target.rope, original=512))


@fault(
    "values-turn-too",
    "the rotation of verify passes runs over all heads of the fused projection, values among them",
    "target.layers.0.v",
    "verify",
    "values of every layer, rotated as keys are",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        made = clean(x, weight, bias)
        if at.kind != "verify" or weight is not pipeline.target.layers[at.layer]["v"]:
            return made
        return rotate(made.reshape(*made.shape[:2], 4, 32), at.step.cos, at.step.sin).reshape(made.shape)

    alter(pipeline, LINEAR, change)


@fault(
    "adapter-of-another-request",
    "from the second prompt on layer 5's v projection adds the product of an adapter of rank 2",
    "target.layers.5.v",
    "prefill",
    "v projection of layer 5, a product of rank 2 beside it",
    "from the second prompt on, layer 5",
    "prompt > 1 and layer = 5",
)
def _(pipeline: Pipeline) -> None:
    draw = np.random.default_rng(18)
    down, up = draw.normal(0, 96**-0.5, (96, 2)), draw.normal(0, 0.2, (2, 128))

    def change(at, clean, x, weight, bias):
        made = clean(x, weight, bias)
        if at.prompt < 2 or weight is not pipeline.target.layers[5]["v"]:
            return made
        return at.changed(made, lambda value: value + at.host(x) @ down @ up)

    alter(pipeline, LINEAR, change)
