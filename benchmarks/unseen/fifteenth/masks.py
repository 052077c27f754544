"""Faults of the target's masks, sinks and splits over keys."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target attention", 15)
ATTEND = "kernels.target_layer:attend"
WINDOW, TILE, DIM = 32, 16, 32
"""Keys of the sliding window, keys of a split's tile, columns of a head."""


@fault(
    "window-includes-its-far-end",
    "sliding-window layers see 33 keys where 32 are meant",
    "target.layers.0.attn_out",
    "prefill",
    "mask of sliding-window layers: window one key too long",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        def widened(value):
            return value | (np.arange(value.shape[-1]) == (at.positions - WINDOW)[:, None])

        return clean(q, keys, values, at.changed(seen, widened) if at.layer % 2 == 0 else seen, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "sinks-scaled-as-scores",
    "sink logits are multiplied by the score scale",
    "target.layers.0.attn_out",
    "prefill",
    "sinks of every layer: scaled by head_dim ** -0.5",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "sinks", lambda value: value * DIM**-0.5, every(pipeline.target))


@fault(
    "sink-again-behind-an-empty-split",
    "a row whose first split of 64 keys lies outside the window counts its sink twice",
    "target.layers.0.attn_out",
    "prefill",
    "sinks of sliding-window layers: counted twice",
    "rows at positions from 95 on, even layers",
    "position >= 95 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        made = clean(q, keys, values, seen, sinks)
        if at.layer % 2:
            return made
        twice = at.host(clean(q, keys, values, seen, at.changed(sinks, lambda value: value + np.log(2.0))))
        empty = (at.positions >= 95)[None, :, None]
        return at.changed(made, lambda value: np.where(empty, twice, value))

    alter(pipeline, ATTEND, change)


@fault(
    "verify-rows-see-the-drafts-behind",
    "rows of a verify pass see every row of it, later drafts included",
    "target.layers.0.attn_out",
    "verify",
    "mask of every layer: not causal among the rows of a pass",
    "verify rows but the last",
    "pass = verify and row < 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        def opened(value):
            value[..., at.positions[0] : at.positions[-1] + 1] = True
            return value

        return clean(q, keys, values, at.changed(seen, opened) if at.kind == "verify" else seen, sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "last-group-skips-partial-tile",
    "kv group 3 of layer 3 skips the cached keys behind the last whole tile of 16 in verify passes",
    "target.layers.3.attn_out",
    "verify",
    "mask of heads 6 and 7 of layer 3: keys of the cache's last, partial tile",
    "verify passes over a number of cached rows that is no multiple of 16, layer 3, heads 6 and 7",
    "pass = verify and layer = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        made = clean(q, keys, values, seen, sinks)
        if at.layer != 3 or at.kind != "verify":
            return made
        cached = pipeline.target.length

        def skipped(value):
            value[..., cached - cached % TILE : cached] = False
            return value

        wrong = at.host(clean(q, keys, values, at.changed(seen, skipped), sinks))
        own = np.arange(made.shape[-1]) >= 6 * DIM
        return at.changed(made, lambda value: np.where(own, wrong, value))

    alter(pipeline, ATTEND, change)
