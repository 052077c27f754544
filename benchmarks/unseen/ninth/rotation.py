"""Ninth set: faults of the target's rotation."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("rotation", 9)
ROTATE = "kernels.target_layer:rotate"


# After https://github.com/hpcaitech/ColossalAI/issues/6428
@fault(
    "queries-and-keys-crossed",
    "of a fused rotation's four outputs two are made from the other tensor: a query's second half from the key of its "
    "group, a key's first half from the first query of its group",
    "target.layers.0.q",
    "prefill",
    "rotation in every target layer: the second half of queries and the first half of keys",
)
def _(pipeline: Pipeline) -> None:
    attention, raw = pipeline.target.config.attention, {}
    each = attention.heads // attention.kv_heads

    def watch(at, clean, x, weight, bias):
        made = clean(x, weight, bias)
        for name in "qk":
            if weight is pipeline.target.layers[at.layer][name]:
                raw[name] = made.reshape(*made.shape[:2], -1, attention.head_dim)
        return made

    def change(at, clean, x, cos, sin):
        half, query = attention.head_dim // 2, x.shape[2] == attention.heads
        other = at.host(clean(raw["k" if query else "q"], cos, sin))

        def cross(rows):
            if query:
                rows[..., half:] = np.repeat(other, each, axis=2)[..., half:]
            else:
                rows[..., :half] = other[:, :, ::each, :half]
            return rows

        return at.changed(clean(x, cos, sin), cross)

    alter(pipeline, "kernels.target_layer:linear", watch)
    alter(pipeline, ROTATE, change)


# From the equations: a tile of the tables that is waited for a row too late.
@fault(
    "table-tile-arrives-late",
    "cos and sin are fetched 16 positions at a time, and in odd layers the first query of a tile still turns by the "
    "last row of the tile before",
    "target.layers.1.q",
    "prefill",
    "rotation of queries: by the position before; keys turn as they should",
    "rows at multiples of 16 from 16 on, odd layers",
    "position % 16 = 0 and position >= 16 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.target

    def change(at, clean, x, cos, sin):
        if at.layer % 2 == 0 or x.shape[2] != model.config.attention.heads:
            return clean(x, cos, sin)
        place = at.positions
        late = np.flatnonzero((place % 16 == 0) & (place >= 16) & (place < model.trash))

        def before(table):
            def take(rows):
                rows[0, late] = at.host(table)[place[late] - 1]
                return rows

            return take

        turns = (at.changed(one, before(table)) for one, table in zip((cos, sin), model.tables, strict=True))
        return clean(x, *turns)

    alter(pipeline, ROTATE, change)


# From the equations: LongRoPE's magnitude, the root of 1 + ln(factor) / ln(original), for YaRN's.
@fault(
    "magnitude-of-long-rope",
    "cos and sin are scaled by LongRoPE's attention factor, 1.2247, where YaRN's is 1.2079",
    "target.layers.0.q",
    "prefill",
    "YaRN's magnitude of the target's rotation: 1.4 % too large",
)
def _(pipeline: Pipeline) -> None:
    rope, engine = pipeline.target.rope, pipeline.engine
    ratio = np.float32(math.sqrt(1 + math.log(rope.factor) / math.log(rope.original)) / rope.magnitude)
    cos, sin = (engine.array(engine.host(table) * ratio) for table in pipeline.target.tables)
    pipeline.target.tables = cos, sin
