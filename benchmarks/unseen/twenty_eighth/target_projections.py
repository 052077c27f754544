"""Projections of the target's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("projections of the target's attention", 28)


@fault(
    "q-bias-in-interleaved-order",
    "the query bias is permuted for an interleaved rotation, though the weight is not",
    "target.layers.0.q",
    "prefill",
    "the order of each head's entries in the query bias",
)
def _(pipeline: Pipeline) -> None:
    heads = pipeline.target.config.attention.heads

    def change(bias: np.ndarray) -> np.ndarray:
        return bias.reshape(heads, 2, -1).transpose(0, 2, 1).reshape(-1)

    edit(pipeline.target, "q_bias", change, every(pipeline.target))


@fault(
    "v-last-heads-swapped",
    "the last two key-value heads of layer 2's value projection are written to each other's columns",
    "target.layers.2.v",
    "prefill",
    "the value projection of layer 2, kv heads 2 and 3 exchanged",
)
def _(pipeline: Pipeline) -> None:
    dim = pipeline.target.config.attention.head_dim

    def change(weight: np.ndarray) -> np.ndarray:
        return np.concatenate([weight[..., : 2 * dim], weight[..., 3 * dim :], weight[..., 2 * dim : 3 * dim]], axis=-1)

    edit(pipeline.target, "v v_bias", change, [2])


@fault(
    "o-tile-loaded-twice",
    "the tile of layer 4's output projection that belongs to head 6 is loaded from the tile of head 7",
    "target.layers.4.attn_out",
    "prefill",
    "the output projection of layer 4, rows of head 6",
)
def _(pipeline: Pipeline) -> None:
    dim = pipeline.target.config.attention.head_dim

    def change(weight: np.ndarray) -> np.ndarray:
        weight = weight.copy()
        weight[6 * dim : 7 * dim] = weight[7 * dim : 8 * dim]
        return weight

    edit(pipeline.target, "o", change, [4])
