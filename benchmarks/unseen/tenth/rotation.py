"""Tenth set: faults of the target's rotation."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import tables
from parity.device.pipeline import Pipeline

fault = Part("rotation", 10)
ROTATE = "kernels.target_layer:rotate"


# From the equations: two small tables for a large one, by the sum of two angles.
@fault(
    "angles-composed-of-two-tables",
    "cos and sin are put together from those of a multiple of 16 and of the rest, two tables in bfloat16",
    "target.layers.0.q",
    "prefill",
    "cos and sin of the target's rotation: products of numbers that are rounded to bfloat16",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    model, engine = pipeline.target, pipeline.engine
    magnitude = np.float32(model.rope.magnitude)
    place = np.arange(model.positions)

    def rounded(table, rows):
        return (table / magnitude)[rows].astype(ml_dtypes.bfloat16).astype(np.float32)

    cos, sin = (engine.host(table) for table in model.tables)
    far_cos, far_sin = (rounded(table, place // 16 * 16) for table in (cos, sin))
    near_cos, near_sin = (rounded(table, place % 16) for table in (cos, sin))
    model.tables = (
        engine.array((far_cos * near_cos - far_sin * near_sin) * magnitude),
        engine.array((far_sin * near_cos + far_cos * near_sin) * magnitude),
    )


# From the equations: the second block of heads has a table of one tile.
@fault(
    "second-block-of-heads-wraps-round",
    "queries turn in blocks of four heads, and the second block's table is 128 rows long and read round and round",
    "target.layers.0.q",
    "prefill",
    "rotation of query heads 4 to 7 in every target layer: by the position less 128",
    "rows at positions from 128 on, query heads 4 to 7",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.target

    def change(at, clean, x, cos, sin):
        made = clean(x, cos, sin)
        if x.shape[2] != model.config.attention.heads:
            return made
        far = (at.positions >= 128) & (at.positions < model.trash)
        wrapped = (at.array(at.host(table)[None, at.positions % 128], cos) for table in model.tables)
        other = at.host(clean(x, *wrapped))

        def take(rows):
            rows[:, far, 4:] = other[:, far, 4:]
            return rows

        return at.changed(made, take)

    alter(pipeline, ROTATE, change)


# Of another family's setting: layers with a window have a base of their own, and no extension.
@fault(
    "sliding-layers-by-a-local-base",
    "sliding layers turn by a local base of 10000 without any extension, as another family has it",
    "target.layers.0.q",
    "prefill",
    "the target's RoPE in sliding layers: plain, of base 10000, without YaRN's frequencies and magnitude",
    "even layers",
    "layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.target
    local = replace(model.rope, kind="default", theta=10000.0, factor=1.0, magnitude=1.0)
    pair = tables(local, model.config.attention.head_dim, model.positions)

    def change(at, clean, x, cos, sin):
        if at.layer % 2:
            return clean(x, cos, sin)
        place = np.where(at.positions < model.trash, at.positions, 0)
        return clean(x, *(at.array(table[None, place], cos) for table in pair))

    alter(pipeline, ROTATE, change)
