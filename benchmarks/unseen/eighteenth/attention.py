"""Faults of the target's sinks and softmax."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target attention", 18)
SOFTMAX, OUT = "kernels.attention:softmax", "target.layers.0.attn_out"


@fault(
    "sinks-left-at-zero",
    "the sinks' parameter is made as zeros, and the loader knows no tensor of that name",
    OUT,
    "prefill",
    "sinks of every layer, zero",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "sinks", lambda value: 0 * value, every(pipeline.target))


@fault(
    "sink-column-cut-at-the-wrong-end",
    "sinks are put in front of the scores, and the last column of the weights is cut off, not the first",
    OUT,
    "prefill",
    "softmax weights of every layer, each key has that of the key before and key 0 the sink's",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        made = clean(x, sink)

        def late(value):
            first = 1 - value.sum(axis=-1, keepdims=True)
            return np.concatenate([first, value[..., :-1]], axis=-1)

        return made if sink is None else at.changed(made, late)

    alter(pipeline, SOFTMAX, change)


@fault(
    "scores-over-the-head-dim",
    "the target's scores are divided by the head dim, not by its root",
    OUT,
    "prefill",
    "score scale of every layer of the target, 1/32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        return clean(x if sink is None else at.changed(x, lambda value: value * 32**-0.5), sink)

    alter(pipeline, SOFTMAX, change)


@fault(
    "row-sums-of-the-even-head",
    "both query heads of a kv group are divided by the sum of the first one in verify passes",
    OUT,
    "verify",
    "softmax denominators of odd query heads in every layer, those of the head before",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        made = clean(x, sink)
        if sink is None or at.kind != "verify":
            return made
        scores, sinks = at.host(x), at.host(sink)
        top = np.maximum(scores.max(axis=-1, keepdims=True), sinks)
        sums = np.exp(scores - top).sum(axis=-1, keepdims=True) + np.exp(sinks - top)
        return at.changed(made, lambda value: value * (sums / sums[:, :, :1]))

    alter(pipeline, SOFTMAX, change)
