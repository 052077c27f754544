"""Faults of the drafter's norms, its midlayer and its MLPs."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("drafter layers", 20)
WIDTH = 96
"""Of the drafter's stream."""


@fault(
    "midlayer-hidden-in-front",
    "layer 0 joins hidden and embedding in the other order: the hidden comes first",
    "drafter.layers.0.attn_out",
    "prefill",
    "order of the halves of the input of layer 0's q, k and v",
)
def _(pipeline: Pipeline) -> None:
    for name in "qkv":
        rewritten(pipeline, pipeline.drafter.layers[0], name, lambda value: np.roll(value, WIDTH, axis=0))


@fault(
    "midlayer-norms-exchanged",
    "layer 0 norms the embedding by hidden_norm and the hidden by input_norm",
    "drafter.layers.0.attn_out",
    "prefill",
    "weights of layer 0's two norms of its inputs",
)
def _(pipeline: Pipeline) -> None:
    weights = pipeline.drafter.layers[0]
    weights["hidden_norm"], weights["input_norm"] = weights["input_norm"], weights["hidden_norm"]


@fault(
    "midlayer-residual-of-embedding",
    "layer 0 takes the embedding for its residual where the fused hidden is meant",
    "drafter.layers.0.ffn_out",
    "prefill",
    "residual stream that layer 0 begins with",
)
def _(pipeline: Pipeline) -> None:
    held: dict[str, Any] = {}

    def midlayer(at, clean, embedded, *rest):
        held["embedded"] = embedded
        return clean(embedded, *rest)

    def rest(at, clean, residual, *given):
        return clean(residual if at.layer else held["embedded"], *given)

    alter(pipeline, "drafter:midlayer", midlayer)
    alter(pipeline, "kernels.drafter_layer:_rest", rest)


@fault(
    "down-input-in-e4m3",
    "what goes into the down projections is quantised to fp8 (e4m3) although the drafter is not a quantised one",
    "drafter.layers.0.ffn_out",
    "prefill",
    "input of the down projection in every layer",
)
def _(pipeline: Pipeline) -> None:
    def narrow(value):
        return value.astype(float8_e4m3fn).astype(np.float32)

    def change(at, clean, x, weight, *rest):
        is_down = weight.shape[0] == pipeline.drafter.config.intermediate
        return clean(at.changed(x, narrow) if is_down else x, weight, *rest)

    alter(pipeline, "kernels.drafter_layer:row_parallel", change)


@fault(
    "down-weight-clipped",
    "the loader quantises with a range of two standard deviations: larger weights of layer 3's down are cut to it",
    "drafter.layers.3.ffn_out",
    "prefill",
    "outlying elements of layer 3's down weight",
)
def _(pipeline: Pipeline) -> None:
    def clipped(value):
        return np.clip(value, -2 * value.std(), 2 * value.std())

    rewritten(pipeline, pipeline.drafter.layers[3], "down", clipped)


@fault(
    "drafter-has-targets-final-norm",
    "head and final norm are shared with the target: the drafter's own final norm is not used",
    "drafter.pre_head_hidden",
    "draft",
    "weight of the drafter's final norm",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.outer["norm"] = pipeline.target.outer["norm"]
