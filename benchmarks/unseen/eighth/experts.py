"""Eighth set: faults of router and experts."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("experts", 8)


# Of the class of https://github.com/tenstorrent/tt-metal/issues/50669: rows of an expert that some counts get wrong.
@fault(
    "full-tiles-counted-one-short",
    "an expert's rows run in tiles of 8, and where the last tile is full it is not counted",
    "target.layers.0.ffn_out",
    "prefill",
    "the last 8 rows of an expert: its output is missing from their sum",
    "rows among the last 8 of an expert that a multiple of 8 rows of the pass chose",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        real = at.positions != pipeline.target.trash
        picked = at.host(chosen)[0]

        def drop(value):
            for expert in range(len(value)):
                rows = np.flatnonzero((picked == expert).any(axis=-1) & real)
                if len(rows) % 8 == 0:
                    value[expert, :, rows[-8:]] = 0
            return value

        return clean(at.changed(outputs, drop), chosen, shares)

    alter(pipeline, "kernels.moe:mix", change)


# From the equations: a softmax over a vector register.
@fault(
    "shares-beside-two-empty-lanes",
    "the softmax over two chosen experts runs in four lanes, and the empty ones hold a logit of zero",
    "target.layers.0.ffn_out",
    "prefill",
    "shares of every layer's experts: their sum is less than 1 by two exponentials of zero in the denominator",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        lanes = np.pad(at.host(x), [(0, 0)] * (x.ndim - 1) + [(0, 2)])
        return clean(at.array(lanes, x), sink)[..., : x.shape[-1]]

    alter(pipeline, "kernels.moe:softmax", change)


# From the equations: an operand of the activation that is narrower than its others.
@fault(
    "lifted-in-bfloat16",
    "up + 1 is kept in bfloat16 until gate's half of the activation is there",
    "target.layers.0.ffn_out",
    "prefill",
    "up + 1 in every expert's activation: rounded to bfloat16",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        def rounded(value):
            return (np.clip(value, -limit, limit) + np.float32(1)).astype(ml_dtypes.bfloat16).astype(np.float32) - 1

        return clean(gate, at.changed(up, rounded), limit, alpha)

    alter(pipeline, "kernels.moe:clamped_swiglu", change)
