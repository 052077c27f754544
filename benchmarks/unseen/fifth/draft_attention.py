"""Fifth set: faults of the drafter's attention."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("drafter layers", 5)
LAYER = "kernels.drafter_layer"


@fault(
    "midlayer-values-of-hidden-twice",
    "the midlayer's v projection takes the normed hidden in both halves of its input, q and k take the embedding too",
    "drafter.layers.0.attn_out",
    "prefill",
    "first half of the input of the midlayer's v projection",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias=None):
        def twice(value):
            half = value.shape[-1] // 2
            return np.concatenate([value[..., half:]] * 2, axis=-1)

        mine = weight is pipeline.drafter.layers[0]["v"]
        return clean(at.changed(x, twice) if mine else x, weight, bias)

    alter(pipeline, f"{LAYER}:linear", change)


@fault(
    "masked-rows-not-written",
    "layer 1 writes keys and values of committed rows alone: masked rows see zeros in their own slots",
    "drafter.layers.1.attn_out",
    "draft",
    "keys and values of masked rows in layer 1",
    "masked rows, layer 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, _part, rows, slots):
        if at.layer == 1 and at.kind == "draft":
            rows[:, at.committed : at.committed + at.masked] = 0
        return rows, slots

    writing(pipeline, "drafter", change)


@fault(
    "drafter-with-sinks-of-zero",
    "the drafter runs the target's attention with sinks of zero, which take weight, where it has none",
    "drafter.layers.0.attn_out",
    "prefill",
    "softmax denominator of every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        return clean(q, keys, values, seen, at.array(np.zeros(q.shape[2], np.float32), q))

    alter(pipeline, f"{LAYER}:attend", change)


@fault(
    "reciprocal-rounded",
    "layer 2's softmax multiplies by the reciprocal of its sum in bfloat16",
    "drafter.layers.2.attn_out",
    "prefill",
    "denominator of layer 2's softmax",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        made = clean(q, keys, values, seen)
        if at.layer != 2:
            return made
        wide, each = at.host(q), q.shape[2] // keys.shape[2]
        scores = np.einsum("bsnd,bpnd->bsnp", wide, np.repeat(at.host(keys), each, axis=2)) * wide.shape[-1] ** -0.5
        scores = np.where(at.host(seen)[:, :, None], scores, -1e30)
        total = np.exp(scores - scores.max(axis=-1, keepdims=True)).sum(axis=-1, keepdims=True)
        factor = (1 / total).astype(bfloat16).astype(np.float32) * total
        return at.changed(made, lambda value: (value.reshape(wide.shape) * factor).reshape(value.shape))

    alter(pipeline, f"{LAYER}:attend", change)
