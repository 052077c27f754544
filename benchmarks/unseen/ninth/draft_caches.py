"""Ninth set: faults of the drafter's caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft caches", 9)


# From the equations: slots of a layer group that are counted from its own, padded beginning.
@fault(
    "slots-of-the-second-group",
    "layers 2 and 3 have slots of their own, and these count from 1",
    "drafter.layers.2.attn_out",
    "prefill",
    "slots that layers 2 and 3 write: one too far, while masks count from 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        return rows, slots + ((slots < pipeline.drafter.trash) & (at.layer >= 2)).astype(slots.dtype)

    writing(pipeline, "drafter", change)


# From the equations: one cache for keys and values, in two orders of its axes.
@fault(
    "pairs-read-as-halves",
    "the drafter's cache holds key and value of a head beside each other, and attention reads all keys first",
    "drafter.layers.0.attn_out",
    "prefill",
    "keys that attention reads: key and value of kv heads 0 and 1; values: those of kv heads 2 and 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        both = np.stack([at.host(keys), at.host(values)], axis=3)
        halves = np.split(both.reshape(*keys.shape[:2], -1, keys.shape[-1]), 2, axis=2)
        return clean(q, at.array(halves[0], keys), at.array(halves[1], values), seen)

    alter(pipeline, "kernels.drafter_layer:attend", change)
