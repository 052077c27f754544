"""Faults of the drafter's norms and MLP."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("drafter MLP", 23)
FIRST = "drafter.layers.0.ffn_out"
MLP = "kernels.drafter_layer:_mlp"


def _product(at, x, weights, sigmoid):
    """The MLP with another sigmoid of the gate; float32, one cast."""
    wide = at.host(x)
    gate, up = (at.host(at.array(wide @ at.host(weights[name]), x)) for name in ("gate", "up"))
    active = at.host(at.array(up * gate * sigmoid(gate), x))
    return at.array(active @ at.host(weights["down"]), x)


def _sigmoid(gate):
    return 1 / (1 + np.exp(-gate))


@fault(
    "down-tail-tile-overlaps",
    "the second tile of 128 inputs of down is moved back to fit into 224: the inputs 96 to 127 count twice",
    FIRST,
    "prefill",
    "down weight of every layer, inputs 96 to 127, twice as large",
)
def _(pipeline: Pipeline) -> None:
    def twice(value):
        value[96:128] *= 2
        return value

    for weights in pipeline.drafter.layers:
        rewritten(pipeline, weights, "down", twice)


@fault(
    "sigmoid-kept-in-bfloat16",
    "the gate's sigmoid is rounded to bfloat16 before it multiplies",
    FIRST,
    "prefill",
    "precision of the sigmoid in every layer's MLP",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def rounded(gate):
        return _sigmoid(gate).astype(bfloat16).astype(np.float32)

    alter(pipeline, MLP, lambda at, clean, x, weights: _product(at, x, weights, rounded))


@fault(
    "post-norm-of-other-buffer",
    "odd layers read their post-attention norm from the other of two prefetch buffers: that of the layer before",
    "drafter.layers.1.ffn_out",
    "prefill",
    "post-attention norm's weight in layers 1 and 3",
    "odd layers",
    "layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    layers = pipeline.drafter.layers
    for number in range(1, len(layers), 2):
        layers[number]["post_norm"] = layers[number - 1]["post_norm"]
