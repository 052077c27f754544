"""Tenth set: faults of the drafter's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft attention", 10)
ATTEND = "kernels.drafter_layer:attend"


# From the equations: a head that is as wide as hidden over heads, where the config says otherwise.
@fault(
    "scale-from-hidden-over-heads",
    "scores are scaled by the root of 96 / 12 = 8, the width that a head would have, and heads are 32 wide",
    "drafter.layers.0.attn_out",
    "prefill",
    "the score scale of every drafter layer: twice what it should be",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        return clean(at.changed(q, lambda rows: rows * 2), keys, values, seen)

    alter(pipeline, ATTEND, change)


# From the equations: a mask of two parts, the cache and the drafted rows, and rows that are in neither.
@fault(
    "masked-rows-skip-committed-ones",
    "a masked row's mask is put together from the cache as the pass found it and from the masked rows",
    "drafter.layers.0.attn_out",
    "draft",
    "the mask of every drafter layer: committed rows of the same pass are not seen by masked rows",
    "masked rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        if at.kind == "draft":
            key, mask = np.arange(seen.shape[-1]), at.host(seen)
            own = (key >= at.positions[0]) & (key < at.positions[0] + at.committed)
            mask[:, at.committed : at.committed + at.masked] &= ~own
            seen = at.engine.array(mask)
        return clean(q, keys, values, seen)

    alter(pipeline, ATTEND, change)


# From the equations: scores of empty slots are 0, and so is what they add, but for the denominator.
@fault(
    "empty-slots-in-the-denominator",
    "keys come in pages of 16, and slots of the last page that nothing was written to are summed as scores of 0",
    "drafter.layers.0.attn_out",
    "prefill",
    "the softmax denominator of every drafter layer: each slot behind the pass, up to a multiple of 16, adds exp(0)",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        made = clean(x, sink)
        if sink is not None:
            return made
        scores, places = at.host(x), at.positions
        empty = -(int(places[places < pipeline.drafter.trash].max()) + 1) % 16
        top = scores.max(axis=-1, keepdims=True)
        total = np.exp(scores - top).sum(axis=-1, keepdims=True)
        return at.changed(made, lambda weights: weights * (total / (total + empty * np.exp(-top))))

    alter(pipeline, "kernels.attention:softmax", change)
