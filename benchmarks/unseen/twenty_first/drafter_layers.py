"""Faults of the drafter's norms, attention and rope."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.kernels.rope import tables
from parity.device.pipeline import Pipeline

fault = Part("drafter attention", 21)
FIRST, ATTEND = "drafter.layers.0.attn_out", "kernels.drafter_layer:attend"


@fault(
    "input-norm-over-padded-width",
    "the input norm of layer 3 takes its mean over 128 numbers, 96 of them and padding",
    "drafter.layers.3.attn_out",
    "prefill",
    "the input norm of the drafter's layer 3",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "input_norm", lambda value: value * (128 / 96) ** 0.5, [3])


@fault(
    "attention-scale-from-hidden-size",
    "scores are divided by the root of hidden size over heads, 8, where the config's head dim, 32, is meant",
    FIRST,
    "prefill",
    "scale of the drafter's attention",
)
def _(pipeline: Pipeline) -> None:
    alter(pipeline, ATTEND, lambda at, clean, q, *rest: clean(q * 2.0, *rest))


@fault(
    "groups-of-three-read-as-four",
    "in layers from 1 on query head h reads kv head h div 4, though three heads share one",
    "drafter.layers.1.attn_out",
    "prefill",
    "kv heads of the queries in the drafter's layers 1 to 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        if at.layer:
            heads = np.arange(q.shape[2]) // 4
            keys, values = keys[:, :, heads], values[:, :, heads]
        return clean(q, keys, values, seen)

    alter(pipeline, ATTEND, change)


@fault(
    "values-scaled-as-keys",
    "layer 1's fused q, k and v are dequantised by one scale: the values' weight gets that of the keys",
    "drafter.layers.1.attn_out",
    "prefill",
    "the value projection of the drafter's layer 1",
)
def _(pipeline: Pipeline) -> None:
    key = np.abs(pipeline.engine.host(pipeline.drafter.layers[1]["k"]).astype(np.float32)).max()
    edit(pipeline.drafter, "v", lambda value: value * key / np.abs(value).max(), [1])


@fault(
    "second-split-reads-first-values",
    "with more than 128 rows cached a draft's second split of 64 keys is mixed with the first split's values",
    FIRST,
    "draft",
    "values of cache rows 64 to 127 in every layer of the drafter",
    "draft passes behind more than 128 cached rows",
    "pass = draft and cached > 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        def stale(value):
            value[:, 64:128] = value[:, :64]
            return value

        late = at.kind == "draft" and pipeline.drafter.length > 128
        return clean(q, keys, at.changed(values, stale) if late else values, seen)

    alter(pipeline, ATTEND, change)


@fault(
    "llama3-original-from-max-positions",
    "the drafter's llama3 scaling takes max_position_embeddings for the original context",
    FIRST,
    "prefill",
    "frequencies of the drafter's rope",
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter
    rope = replace(drafter.rope, original=drafter.config.max_positions)
    cos, sin = tables(rope, drafter.config.attention.head_dim, drafter.positions)
    drafter.tables = pipeline.engine.array(cos), pipeline.engine.array(sin)


@fault(
    "rope-one-behind-after-none-accepted",
    "behind a round that accepted no draft the rows of a draft are rotated by the position before theirs",
    FIRST,
    "draft",
    "rotation of the drafter's queries and keys",
    "draft passes behind a round that accepted no draft",
    "pass = draft and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, positions, *rest):
        made = clean(positions, *rest)
        if at.kind != "draft" or at.accepted != 0:
            return made
        late = clean(at.changed(positions, lambda value: np.maximum(value - 1, 0)), *rest)
        return replace(made, cos=late.cos, sin=late.sin)

    replaced(pipeline, pipeline.drafter, "make_step", change)
