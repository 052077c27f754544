"""Faults of the target's key and value cache."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target cache", 25)


@fault(
    "value-cache-of-last-layer-read-dim-major",
    "layer 7 reads a row of the value cache as dim by head, and it is written as head by dim",
    "target.layers.7.attn_out",
    "prefill",
    "layout of the value cache of layer 7",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, *rest):
        def major(value):
            return value.reshape(*value.shape[:2], 32, 4).swapaxes(2, 3)

        return clean(q, keys, at.changed(values, major) if at.layer == 7 else values, *rest)

    alter(pipeline, "kernels.target_layer:attend", change)


@fault(
    "first-value-of-new-page-not-stored",
    "a verify pass does not write the value of a row that begins a page of 16",
    "target.layers.0.attn_out",
    "verify",
    "value cache at the first row of a page",
    "verify rows that begin a page of 16",
    "pass = verify and position % 16 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        lost = at.kind == "verify" and part == "v"
        return rows, np.where(slots % 16 == 0, at.pipeline.target.trash, slots) if lost else slots

    writing(pipeline, "target", change)
