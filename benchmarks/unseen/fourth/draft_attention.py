"""Fourth set: faults of the drafter's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.kernels.rope import frequencies
from parity.device.pipeline import Pipeline

fault = Part("drafter layers", 4)
LAYER = "kernels.drafter_layer"
GROUPS, DIM, TILE = 4, 32, 32
"""Groups of keys and values; columns of a head; keys that are read at a time."""
ENTRIES = 4096
"""Of the table of one turn."""


@fault(
    "weights-permuted-for-pairs",
    "layer 2's q and k weights are permuted for a rotation of neighbours, and turned by halves",
    "drafter.layers.2.attn_out",
    "prefill",
    "order of columns within the heads of layer 2's q and k weights",
)
def _(pipeline: Pipeline) -> None:
    def permuted(value):
        return value.reshape(len(value), -1, 2, DIM // 2).swapaxes(2, 3).reshape(value.shape)

    edit(pipeline.drafter, "q k", permuted, [2])


@fault(
    "keys-turn-by-their-token",
    "keys are rotated by the position of their row's token, one ahead of the row's own; queries are not",
    "drafter.layers.0.attn_out",
    "prefill",
    "rotation of every layer's keys",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, *waves):
        if x.shape[2] != GROUPS:
            return clean(x, *waves)
        tables = [at.host(table) for table in pipeline.drafter.tables]
        ahead = np.minimum(at.positions + 1, len(tables[0]) - 1)
        return clean(x, *(at.array(table[ahead][None], wave) for table, wave in zip(tables, waves, strict=True)))

    alter(pipeline, f"{LAYER}:rotate", change)


@fault(
    "last-key-tile-not-counted",
    "layer 3's draft passes read the whole tiles of 32 keys alone, not the last one in part",
    "drafter.layers.3.attn_out",
    "draft",
    "mask of layer 3, keys behind the last whole tile",
    "draft passes, layer 3",
    "pass = draft and layer = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        def cut(value):
            count = int(at.positions[: at.committed + at.masked].max()) + 1
            value[..., count // TILE * TILE :] = False
            return value

        there = at.layer == 3 and at.kind == "draft"
        return clean(q, keys, values, at.changed(seen, cut) if there else seen)

    alter(pipeline, f"{LAYER}:attend", change)


@fault(
    "waves-from-a-table",
    "the drafter's cos and sin are the nearest of a table of 4096 entries for one turn",
    "drafter.layers.0.attn_out",
    "prefill",
    "cos and sin of the drafter's rotation",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter
    angles = np.arange(drafter.positions)[:, None] * frequencies(drafter.rope, DIM)
    nearest = np.round(angles / (2 * np.pi) * ENTRIES) * (2 * np.pi / ENTRIES)
    waves = (wave(nearest) * drafter.rope.magnitude for wave in (np.cos, np.sin))
    drafter.tables = tuple(drafter.engine.array(wave.astype(np.float32)) for wave in waves)
