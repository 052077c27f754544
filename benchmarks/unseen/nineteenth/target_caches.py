"""Faults of the target's key and value caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target caches", 19)
PAGE = 16


@fault(
    "last-layers-share-a-pool",
    "sliding and full layers are grouped over pools of pages, and layer 6 got the pool of layer 7: each overwrites it",
    "kv.target.6.k",
    "prefill",
    "keys and values of layer 6, which are layer 7's in every later pass",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, held, *rest):
        if held == 6:
            pipeline.target.caches[6] = pipeline.target.caches[7]
        return clean(held, *rest)

    replaced(pipeline, pipeline.target, "layer", change)


@fault(
    "page-looked-up-once",
    "a verify pass looks up the page of its first row alone: rows of the next page wrap around within that one",
    "target.layers.0.attn_out",
    "verify",
    "slots that keys and values are written to, in every layer",
    "verify passes whose rows lie in two pages of 16",
)
def _(pipeline: Pipeline) -> None:
    trash = pipeline.target.trash

    def change(at, part, rows, slots):
        if at.kind == "verify":
            slots = np.where(slots < trash, slots[:, :1] // PAGE * PAGE + slots % PAGE, slots)
        return rows, slots

    writing(pipeline, "target", change)


@fault(
    "page-freed-by-sliding-group",
    "the first page, which no window reaches any more, is freed in full layers too: they read a page of zeros",
    "target.layers.1.attn_out",
    "verify",
    "keys and values of positions 0 to 15 in full layers",
    "verify passes behind 128 cached rows or more, full layers",
    "pass = verify and cached >= 128 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target

    def freed(rows):
        rows[:, :PAGE] = 0
        return rows

    def change(at, clean, q, keys, values, *rest):
        if at.kind == "verify" and target.length >= 128 and target.windows[at.layer] is None:
            keys, values = at.changed(keys, freed), at.changed(values, freed)
        return clean(q, keys, values, *rest)

    alter(pipeline, "kernels.target_layer:attend", change)
