"""Faults of the target's masks and sinks."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target attention", 16)
ATTEND = "kernels.target_layer:attend"
WINDOW = 32


def _seen(pipeline: Pipeline, holds, change) -> None:
    """`change(at, seen [B, S, P], keys [P])` is what rows of a layer see where `holds(at)`."""

    def run(at, clean, q, keys, values, seen, sinks):
        if holds(at):
            seen = at.changed(seen, lambda value: change(at, value, np.arange(value.shape[-1])))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, run)


@fault(
    "window-bound-inclusive",
    "sliding layers see 33 keys: the kernel's left bound is inclusive and was given the window whole",
    "target.layers.0.attn_out",
    "prefill",
    "mask of sliding-window layers, window one key too wide",
)
def _(pipeline: Pipeline) -> None:
    def change(at, value, keys):
        return value | (at.positions[:, None] - keys == WINDOW)

    _seen(pipeline, lambda at: at.layer % 2 == 0, change)


@fault(
    "sink-in-both-splits",
    "verify passes of sliding layers add the sink once more, for the split that holds no key of the window",
    "target.layers.0.attn_out",
    "verify",
    "sinks of sliding-window layers, counted twice",
    "verify passes, even layers",
    "pass = verify and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        twice = at.kind == "verify" and at.layer % 2 == 0
        return clean(q, keys, values, seen, at.changed(sinks, lambda value: value + np.log(2)) if twice else sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "first-key-tile-of-last-row",
    "a tile of 32 prefill rows starts at the first key that its last row sees, in sliding layers",
    "target.layers.0.attn_out",
    "prefill",
    "mask of sliding-window layers, keys before the tile's own",
    "prefill rows from 32 on but the last of each tile of 32, even layers",
    "pass = prefill and position >= 32 and position % 32 != 31 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, value, keys):
        return value & (keys >= (at.positions // 32 * 32)[:, None])

    _seen(pipeline, lambda at: at.kind == "prefill" and at.layer % 2 == 0, change)


@fault(
    "verify-graph-of-128-keys",
    "the captured verify graph attends to 128 keys at most, later ones are never seen",
    "target.layers.0.attn_out",
    "verify",
    "mask of every layer, keys from 128 on",
    "verify rows at positions from 128 on",
    "pass = verify and position >= 128",
)
def _(pipeline: Pipeline) -> None:
    _seen(pipeline, lambda at: at.kind == "verify", lambda at, value, keys: value & (keys < 128))
