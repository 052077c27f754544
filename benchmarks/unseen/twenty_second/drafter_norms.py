"""Faults of the drafter's norms."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels import drafter_layer
from parity.device.kernels.norm import llama_norm
from parity.device.pipeline import Pipeline

fault = Part("drafter norms", 22)


@fault(
    "input-norm-of-layer-before",
    "layer 2 of the drafter has the input norm of layer 1",
    "drafter.layers.2.attn_out",
    "prefill",
    "weight of layer 2's input norm",
)
def _(pipeline: Pipeline) -> None:
    layers = pipeline.drafter.layers
    layers[2]["input_norm"] = layers[1]["input_norm"]


@fault(
    "one-norm-over-both-halves",
    "the midlayer's two norms are fused into one over embedding and hidden together",
    "drafter.layers.0.attn_out",
    "prefill",
    "root mean square of both halves of the midlayer's input",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, embedded, fused, step, weights, caches, config, tap):
        weight = np.concatenate([weights["input_norm"], weights["hidden_norm"]], axis=-1)
        both = llama_norm(np.concatenate([embedded, fused], axis=-1), weight, config.eps)
        return drafter_layer._rest(fused, both, step, weights, caches, config, tap)

    alter(pipeline, "drafter:midlayer", change)


@fault(
    "one-rms-for-all-drafts",
    "the final norm takes one root mean square, that of its first row, for all rows that draft",
    "drafter.pre_head_hidden",
    "draft",
    "root mean square of the drafter's final norm",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        host = at.host(x)
        turned = host / np.sqrt(np.mean(np.square(host[:, :1]), axis=-1, keepdims=True) + eps)
        return at.array(turned, x) * weight

    alter(pipeline, "drafter:llama_norm", change)
