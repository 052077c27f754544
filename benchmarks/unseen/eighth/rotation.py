"""Eighth set: faults of rotation, the target's and the drafter's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import tables
from parity.device.pipeline import Pipeline

fault = Part("rotation", 8)
TURN_END = 1269


# From the equations: a table for short texts beside one for long ones, as LongRoPE has them and YaRN has not.
@fault(
    "short-table-without-yarn",
    "positions inside the original context of 64 turn by plain frequencies, and YaRN's begin behind it",
    "target.layers.0.q",
    "prefill",
    "the target's RoPE at positions below 64: frequencies without YaRN, the magnitude as it should be",
    "rows at positions below 64",
    "position < 64",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.target
    plain = tables(replace(model.rope, kind="default"), model.config.attention.head_dim, model.rope.original)

    def begin(table, short):
        value = pipeline.engine.host(table).copy()
        value[: len(short)] = short
        return pipeline.engine.array(value)

    model.tables = tuple(begin(*pair) for pair in zip(model.tables, plain, strict=True))


# From the equations: positions of packed texts, which begin anew behind a token that ends one.
@fault(
    "positions-begin-anew-behind-a-turn",
    "rotation counts positions from the last end of a turn, as if another text began there",
    "target.layers.0.q",
    "prefill",
    "rotation of queries and keys behind token 1269: positions from 0 on; mask and slots as they should be",
    "prefill rows behind token 1269, the last 7 of a prompt",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        step = clean(rows)
        ends = np.flatnonzero(rows.ids[0, : rows.count] == TURN_END)
        if at.kind != "prefill" or not len(ends):
            return step
        positions, first = rows.positions.copy(), int(ends[-1]) + 1
        positions[0, first : rows.count] = np.arange(rows.count - first)
        anew = clean(replace(rows, positions=positions))
        return replace(step, cos=anew.cos, sin=anew.sin)

    replaced(pipeline, pipeline.target, "step", change)


# From the equations: a launch of whole blocks alone.
@fault(
    "whole-blocks-of-heads-turn",
    "a kernel turns 12 query heads and 4 key heads in blocks of three, and the sixteenth is in no whole block",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's rotation of keys: kv head 3 of every layer does not turn",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        made = clean(x, cos, sin)
        if x.shape[2] != pipeline.drafter.config.attention.kv_heads:
            return made

        def leave(rows):
            rows[:, :, -1] = at.host(x)[:, :, -1]
            return rows

        return at.changed(made, leave)

    alter(pipeline, "kernels.drafter_layer:rotate", change)
