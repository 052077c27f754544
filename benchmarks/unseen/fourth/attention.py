"""Fourth set: faults of the target's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target attention", 4)
ATTEND = "kernels.target_layer:attend"
GROUPS = 4
TRASH = 512
"""The slot of padding."""
EDGE, TILE = 16, 64
"""Keys that are masked together; keys that are added up at a time."""
LOG2E = 1.4453125
"""log2(e) in bfloat16."""


@fault(
    "qkv-packed-by-group",
    "layer 2's fused matrix is packed by kv group, queries, key and value of each, and cut as all q, all k, all v",
    "target.layers.2.q",
    "prefill",
    "q, k and v weights and biases of layer 2",
)
def _(pipeline: Pipeline) -> None:
    weights, at = pipeline.target.layers[2], moment(pipeline)
    for kind in ("", "_bias"):
        names = [f"{name}{kind}" for name in "qkv"]
        parts = [at.host(weights[name]) for name in names]
        by_group = zip(*(np.split(part, GROUPS, axis=-1) for part in parts), strict=True)
        fused = np.concatenate([np.concatenate(group, axis=-1) for group in by_group], axis=-1)
        cut = np.split(fused, np.cumsum([part.shape[-1] for part in parts])[:-1], axis=-1)
        weights.update({name: at.array(one, weights[name]) for name, one in zip(names, cut, strict=True)})


@fault(
    "tile-on-the-diagonal-not-masked",
    "a prefill row of layer 3 sees all 16 keys of the tile that it lies in",
    "target.layers.3.attn_out",
    "prefill",
    "causal mask of layer 3 within a tile of 16 keys",
    "prefill rows that are not the last of their tile of 16, layer 3",
    "pass = prefill and layer = 3 and position % 16 < 15",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if at.layer != 3 or at.kind != "prefill":
            return clean(q, keys, values, seen, sinks)
        rows = at.positions[at.positions < TRASH]
        ends = np.minimum(rows // EDGE * EDGE + EDGE, len(rows))

        def whole(value):
            value[0, : len(rows)] |= np.arange(value.shape[-1]) < ends[:, None]
            return value

        return clean(q, keys, values, at.changed(seen, whole), sinks)

    alter(pipeline, ATTEND, change)


@fault(
    "sink-in-every-key-tile",
    "layer 5 counts the sink once for each tile of 64 keys that a row sees",
    "target.layers.5.attn_out",
    "prefill",
    "sink in layer 5's softmax denominator",
    "rows at positions from 64 on, layer 5",
    "position >= 64 and layer = 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        made = clean(q, keys, values, seen, sinks)
        if at.layer != 5:
            return made
        tiles = np.where(at.positions < TRASH, at.positions, 0) // TILE + 1
        mixed = at.host(made)
        for count in np.unique(tiles[tiles > 1]):
            more = at.changed(sinks, lambda value, count=count: value + np.log(count))
            mixed[:, tiles == count] = at.host(clean(q, keys, values, seen, more))[:, tiles == count]
        return at.array(mixed, made)

    alter(pipeline, ATTEND, change)


@fault(
    "exponent-base-rounded",
    "layer 4's softmax raises 2 to the scores times log2(e) in bfloat16, 1.4453125",
    "target.layers.4.attn_out",
    "prefill",
    "exponential of layer 4's softmax, sink included",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        def stretched(value):
            return value * np.float32(LOG2E * np.log(2))

        if at.layer == 4:
            q, sinks = at.changed(q, stretched), at.changed(sinks, stretched)
        return clean(q, keys, values, seen, sinks)

    alter(pipeline, ATTEND, change)
