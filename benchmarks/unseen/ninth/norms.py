"""Ninth set: faults of the target's norms."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.kernels.norm import gpt_oss_norm
from parity.device.pipeline import Pipeline

fault = Part("norms", 9)


# From the equations: a router kernel that has a norm of its own.
@fault(
    "router-norms-again",
    "the router's kernel norms its rows, and is given normed ones",
    "target.layers.0.router_logits",
    "prefill",
    "the router's input in every layer: the post-attention norm of the normed row; experts take it normed once",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias=None):
        layer = pipeline.target.layers[at.layer]
        if weight is layer["router"]:
            x = gpt_oss_norm(x, layer["post_norm"], pipeline.target.config.eps)
        return clean(x, weight, bias)

    alter(pipeline, "kernels.moe:linear", change)


# From the equations: Gemma's norm, whose weights are kept less one.
@fault(
    "input-norms-add-one",
    "input norms multiply by 1 + weight, as a family that keeps its weights around zero has it",
    "target.layers.0.attn_in",
    "prefill",
    "weights of every layer's input norm: larger by one",
)
def _(pipeline: Pipeline) -> None:
    for layer in pipeline.target.layers:
        rewritten(pipeline, layer, "input_norm", lambda weight: weight + 1)


# From the equations: the mean of roots is not the root of the mean.
@fault(
    "roots-of-thirds-averaged",
    "a row's squares are added in three tiles of 32, and the tiles' roots are averaged, not their means",
    "target.layers.0.attn_in",
    "prefill",
    "root mean square of both norms of every layer: the mean of three tiles' own, which is smaller",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        def norm(rows):
            tiles = np.square(rows.reshape(*rows.shape[:-1], 3, -1)).mean(axis=-1)
            root = np.sqrt(tiles + np.float32(eps)).mean(axis=-1, keepdims=True)
            return rows / root * at.host(weight)

        return at.changed(x, norm)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)
