"""Faults of the drafter's attention and of its layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, scaled
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("drafter layers", 18)
OUT = "drafter.layers.0.attn_out"


@fault(
    "drafter-theta-at-its-default",
    "the drafter's rope_theta is looked for where it is not, and its default of 10000 is taken; the scaling is read",
    OUT,
    "prefill",
    "rope_theta of the drafter, 10000",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.turn(replace(pipeline.drafter.rope, theta=10000.0))


@fault(
    "embedding-added-to-the-residual",
    "the midlayer's residual is the fused hidden and the embedding together",
    "drafter.layers.0.ffn_out",
    "prefill",
    "residual of layer 0, the embedding added",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def remember(at, clean, embedded, *rest):
        held["embedded"] = embedded
        return clean(embedded, *rest)

    def change(at, clean, residual, *rest):
        return clean(residual + held["embedded"] if at.layer == 0 else residual, *rest)

    alter(pipeline, "drafter:midlayer", remember)
    alter(pipeline, "kernels.drafter_layer:_rest", change)


@fault(
    "two-heads-beyond-the-ranks",
    "five ranks take 12 // 5 = 2 query heads each, and heads 10 and 11 are on none",
    OUT,
    "prefill",
    "query heads 10 and 11 of every layer of the drafter, missing",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        return at.changed(clean(*given), scaled(slice(320, 384), 0))

    alter(pipeline, "kernels.drafter_layer:attend", change)


@fault(
    "prefill-without-is-causal",
    "the drafter's prefill hands no mask to its attention and does not say that it is causal",
    OUT,
    "prefill",
    "mask of every layer of the drafter, keys of the prefill's later rows",
    "prefill rows but the last",
    "pass = prefill",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        if at.kind == "prefill":
            last = at.positions[at.positions < pipeline.drafter.trash].max()
            seen = at.changed(seen, lambda value: value | (np.arange(value.shape[-1]) <= last))
        return clean(q, keys, values, seen)

    alter(pipeline, "kernels.drafter_layer:attend", change)


@fault(
    "norm-not-loaded-behind-a-sleep",
    "between the prompts the drafter's weights are let go and loaded again, its hidden norm's stay at one",
    OUT,
    "prefill",
    "hidden norm weight of layer 0 of the drafter, one",
    "from the second prompt on, layer 0",
    "prompt > 1 and layer = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if at.prompt > 1 and weight is pipeline.drafter.layers[0]["hidden_norm"]:
            weight = at.changed(weight, np.ones_like)
        return clean(x, weight, eps)

    alter(pipeline, "kernels.drafter_layer:llama_norm", change)
