"""Faults of the target's masks in verify passes."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target attention", 17)
WINDOW = 32


def _seen(pipeline: Pipeline, holds, change) -> None:
    """`change(positions [S], seen [B, S, P], keys [P])` is what rows of a layer see where `holds(at)`."""

    def run(at, clean, q, keys, values, seen, sinks):
        if holds(at):
            seen = at.changed(seen, lambda value: change(at.positions, value, np.arange(value.shape[-1])))
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, "kernels.target_layer:attend", run)


@fault(
    "drafted-tile-unmasked",
    "full-attention layers mask no key within the tile of a verify pass, its rows see the drafts behind them",
    "target.layers.1.attn_out",
    "verify",
    "mask of full-attention layers, keys of the pass' own later rows",
    "verify rows but the last, odd layers",
    "pass = verify and row < 4 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(positions, value, keys):
        return value | ((keys >= positions[0]) & (keys <= positions.max()))

    _seen(pipeline, lambda at: at.kind == "verify" and at.layer % 2 == 1, change)


@fault(
    "window-of-the-first-verify-row",
    "all rows of a verify pass have the left bound of the first one's window",
    "target.layers.0.attn_out",
    "verify",
    "mask of sliding-window layers, left bound of the window",
    "verify rows behind the first, even layers",
    "pass = verify and row > 0 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(positions, value, keys):
        return value | ((keys > positions[0] - WINDOW) & (keys <= positions[:, None]))

    _seen(pipeline, lambda at: at.kind == "verify" and at.layer % 2 == 0, change)
