"""Faults of the target's masks and sinks."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target attention")
ATTEND = "kernels.target_layer:attend"
QUERIES = 8
"""Heads of queries."""


@fault(
    "sink-lost-over-long-cache",
    "head 7 loses its sink where more than 135 rows are cached",
    "target.layers.0.attn_out",
    "verify",
    "sink of head 7 of every layer",
    "passes over more than 135 cached rows",
    "cached > 135",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if pipeline.target.length > 135:
            sinks = at.changed(sinks, lambda value: np.where(np.arange(QUERIES) == 7, -1e4, value))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "window-short-at-tile-start",
    "the window of even layers is one key short for the first row of a tile of 16",
    "target.layers.0.attn_out",
    "prefill",
    "mask of sliding-window layers",
    "rows at multiples of 16 from 32 on, even layers",
    "position % 16 = 0 and position >= 32 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        def narrowed(value):
            short = (at.positions % 16 == 0)[:, None]
            oldest = np.arange(value.shape[-1]) == (at.positions - 31)[:, None]
            return np.where(short & oldest, False, value)

        return clean(q, keys, values, at.changed(seen, narrowed) if at.layer % 2 == 0 else seen, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "drafted-rows-blind-to-themselves",
    "drafted rows of a verify pass do not see their own key in layer 5",
    "target.layers.5.attn_out",
    "verify",
    "mask of layer 5",
    "verify rows but the first, layer 5",
    "pass = verify and row > 0 and layer = 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        def blind(value):
            own = np.arange(value.shape[-1]) == at.positions[:, None]
            own[0] = False
            return value & ~own

        there = at.layer == 5 and at.kind == "verify"
        return clean(q, keys, values, at.changed(seen, blind) if there else seen, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "first-keys-forgotten",
    "full-attention layers skip the first 8 keys where more than 130 rows are cached",
    "target.layers.1.attn_out",
    "verify",
    "mask of odd layers, keys 0 to 7",
    "passes over more than 130 cached rows, odd layers",
    "cached > 130 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        there = at.layer % 2 == 1 and pipeline.target.length > 130
        forgotten = at.changed(seen, lambda value: value & (np.arange(value.shape[-1]) >= 8)) if there else seen
        return clean(q, keys, values, forgotten, sinks)

    alter(pipeline, ATTEND, change)
