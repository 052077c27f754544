"""Ninth set: faults of the drafter's norms."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft norms", 9)


# From the equations: a norm for each tap, applied behind their fusion.
@fault(
    "fused-hidden-normed-in-thirds",
    "the fused hidden is normed as if three taps lay in it: each 32 columns by their own root mean square",
    "drafter.layers.0.attn_out",
    "prefill",
    "the midlayer's norm of the fused hidden: three roots a row, one of each third of its columns",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if weight is not pipeline.drafter.layers[0]["hidden_norm"]:
            return clean(x, weight, eps)

        def norm(rows):
            thirds = rows.reshape(*rows.shape[:-1], 3, -1)
            root = np.sqrt(np.square(thirds).mean(axis=-1, keepdims=True) + np.float32(eps))
            return (thirds / root).reshape(rows.shape) * at.host(weight)

        return at.changed(x, norm)

    alter(pipeline, "kernels.drafter_layer:llama_norm", change)


# From the equations: squares are added while the row before is still in the buffer.
@fault(
    "first-draft-by-the-root-before",
    "the final norm runs over rows from the last committed one on, and divides that by the root of the row in front",
    "drafter.pre_head_hidden",
    "draft",
    "root mean square of the first draft's hidden: that of the last committed row but one",
    "the first draft of rounds behind one that accepted a draft or more",
)
def _(pipeline: Pipeline) -> None:
    front = {}

    def watch(at, clean, x, committed, k, record):
        front["row"] = at.host(x)[0, committed - 2] if committed > 1 else None
        return clean(x, committed, k, record)

    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        if front["row"] is None:
            return made
        own, other = (np.sqrt(np.square(row).mean() + np.float32(eps)) for row in (at.host(x)[0, 0], front["row"]))

        def divide(rows):
            rows[:, 0] *= own / other
            return rows

        return at.changed(made, divide)

    replaced(pipeline, pipeline.drafter, "choose", watch)
    alter(pipeline, "drafter:llama_norm", change)


# From the equations: the second block of a launch keeps the pointer of the norm before.
@fault(
    "second-block-by-the-input-norm",
    "layer 2's post-attention norm runs four rows a block in draft passes, and behind the first one it has the weight "
    "of the input norm",
    "drafter.layers.2.ffn_out",
    "draft",
    "weight of layer 2's post-attention norm: that of its input norm",
    "rows of draft passes from 4 on, layer 2",
    "pass = draft and row >= 4 and layer = 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        layer, made = pipeline.drafter.layers[2], clean(x, weight, eps)
        if at.kind != "draft" or weight is not layer["post_norm"]:
            return made
        other = at.host(clean(x, layer["input_norm"], eps))

        def take(rows):
            rows[:, 4:] = other[:, 4:]
            return rows

        return at.changed(made, take)

    alter(pipeline, "kernels.drafter_layer:llama_norm", change)
