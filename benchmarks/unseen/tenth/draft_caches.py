"""Tenth set: faults of the drafter's caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft caches", 10)


# Of the class of https://github.com/m0at/rvllm/pull/32: padding that has a live slot.
@fault(
    "padding-takes-the-last-slot",
    "padding rows of a draft pass are given the slot of its last row, and are written behind it",
    "drafter.layers.1.attn_out",
    "draft",
    "key and value of a draft pass' last masked row in every drafter layer: those of a padding row",
    "the last row of draft passes of fewer than 5 committed rows: not behind a round that accepted all 4 drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "draft":
            real = slots < pipeline.drafter.trash
            slots = np.where(real, slots, slots[real].max()).astype(slots.dtype)
        return rows, slots

    writing(pipeline, "drafter", change)


# Of another family's setting: layers that share the keys of one before.
@fault(
    "last-layer-reads-the-keys-before",
    "the drafter's last layer attends over the keys of the layer in front, as in families that share them",
    "drafter.layers.3.attn_out",
    "prefill",
    "keys that layer 3's attention reads: those of layer 2's cache; values are its own",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        if at.layer == 3:
            keys = pipeline.drafter.caches[2][0][:, : keys.shape[1]]
        return clean(q, keys, values, seen)

    alter(pipeline, "kernels.drafter_layer:attend", change)
