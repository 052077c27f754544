"""Thirteenth set: faults of the target's rotation."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("rotation", 13)
ROTATE = "kernels.target_layer:rotate"


# After https://github.com/mlx-node/mlx-node/pull/33: an offset that has moved on already, and a chunk's own one.
@fault(
    "chunk-offset-counted-twice",
    "a prompt runs in chunks of 64, and a chunk's first position is added to a counter that holds it already",
    "target.layers.0.q",
    "prefill",
    "rotation of queries and keys in every target layer: too far by the first position of the row's chunk of 64; mask "
    "and slots are right",
    "prefill rows from 64 on",
    "pass = prefill and position >= 64",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.target

    def change(at, clean, x, cos, sin):
        if at.kind != "prefill":
            return clean(x, cos, sin)
        real = np.where(at.positions < model.trash, at.positions, 0)
        place = real + real // 64 * 64
        return clean(x, *(at.array(at.host(table)[None, place], cos) for table in model.tables))

    alter(pipeline, ROTATE, change)


# After https://github.com/flashinfer-ai/flashinfer/pull/847: a decode kernel that ignores its queries' offsets.
@fault(
    "queries-turn-as-the-last-row",
    "the decode kernel turns queries by the cache's last position, whichever row they are of",
    "target.layers.0.q",
    "verify",
    "rotation of queries in verify passes: by the last row's position; keys turn as they should",
    "verify rows but the last",
    "pass = verify and row < 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        if at.kind == "verify" and x.shape[2] == pipeline.target.config.attention.heads:
            cos, sin = (at.changed(one, lambda rows: rows[:, [-1] * rows.shape[1]]) for one in (cos, sin))
        return clean(x, cos, sin)

    alter(pipeline, ROTATE, change)
