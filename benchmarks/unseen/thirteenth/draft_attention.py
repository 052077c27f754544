"""Thirteenth set: faults of the drafter's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft attention", 13)


# From the equations: powers of two, and scores that are not made ready for them.
@fault(
    "powers-of-two-of-plain-scores",
    "the drafter's softmax takes powers of two of scores that were not multiplied by log2(e)",
    "drafter.layers.0.attn_out",
    "prefill",
    "the softmax of every drafter layer: powers of 2, where powers of e are meant; scores count by 0.69",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        return (
            clean(x, sink) if sink is not None else clean(at.changed(x, lambda scores: scores * np.float32(np.log(2))))
        )

    alter(pipeline, "kernels.attention:softmax", change)


# From the equations: where a page ends.
@fault(
    "last-slot-of-a-page-not-seen",
    "the kernel of draft passes walks over pages of 16 keys, and ends each one slot early",
    "drafter.layers.0.attn_out",
    "draft",
    "the mask of every drafter layer: keys at positions 15, 31, 47 and so on are not seen",
    "draft passes",
    "pass = draft",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        if at.kind == "draft":
            seen = at.engine.array(at.host(seen) & (np.arange(seen.shape[-1]) % 16 != 15))
        return clean(q, keys, values, seen)

    alter(pipeline, "kernels.drafter_layer:attend", change)


# From the equations: a layer that is shared with models whose heads have norms of their own.
@fault(
    "queries-and-keys-normed-by-head",
    "the drafter runs in layers of another family, whose heads have norms, here with weights of one",
    "drafter.layers.0.attn_out",
    "prefill",
    "queries and keys of every drafter layer: each head over its own root mean square, in front of the rotation",
)
def _(pipeline: Pipeline) -> None:
    def norm(rows):
        return rows / np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + np.float32(1e-5))

    def change(at, clean, x, name, weights, config):
        made = clean(x, name, weights, config)
        return at.changed(made, norm) if name in "qk" else made

    alter(pipeline, "kernels.drafter_layer:_heads", change)
