"""Faults of what the target's attention sees."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target attention", 18)
ATTEND = "kernels.target_layer:attend"
CHUNK = 32


@fault(
    "local-chunks-in-place-of-a-window",
    "sliding layers attend within chunks of 32 positions, as another family's local layers do",
    "target.layers.0.attn_out",
    "prefill",
    "mask of sliding-window layers, keys in front of the row's own chunk of 32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if at.layer % 2 == 0:
            first = at.positions // CHUNK * CHUNK
            seen = at.changed(seen, lambda value: value & (np.arange(value.shape[-1]) >= first[:, None]))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "offloaded-page-arrives-late",
    "the first verify pass reads the page of rows 64 to 79 of layer 5 before its copy from the host has landed",
    "target.layers.5.attn_out",
    "verify",
    "keys and values of rows 64 to 79 of layer 5, zero",
    "the verify pass of round 1, layer 5",
    "pass = verify and round = 1 and layer = 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, *rest):
        if at.layer == 5 and at.kind == "verify" and at.round == 1:

            def empty(value):
                value[:, 64:80] = 0
                return value

            keys, values = at.changed(keys, empty), at.changed(values, empty)
        return clean(q, keys, values, *rest)

    alter(pipeline, ATTEND, change)
