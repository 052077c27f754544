"""Seventh set: faults of the drafter's layers."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import tables
from parity.device.pipeline import Pipeline

fault = Part("drafter's layers", 7)


# After https://github.com/sgl-project/sglang/pull/35045
@fault(
    "splits-merged-by-another-base",
    "attention is split over keys by 64, and the splits' logarithms to the base of 2 are merged by powers of e",
    "drafter.layers.0.attn_out",
    "prefill",
    "weights of the drafter's splits of 64 keys: each one's sum of exponentials counts to the power of 1.44",
    "rows at positions from 64 on",
    "position >= 64",
)
def _(pipeline: Pipeline) -> None:
    def merge(scores):
        splits = scores.reshape(*scores.shape[:-1], -1, 64)
        top = splits.max(axis=-1, keepdims=True)
        parts = np.exp(splits - top)
        total = parts.sum(axis=-1, keepdims=True)
        binary = (top + np.log(total)) / np.float32(math.log(2))
        share = np.exp(binary - binary.max(axis=-2, keepdims=True))
        return (parts / total * share / share.sum(axis=-2, keepdims=True)).reshape(scores.shape)

    def change(at, clean, x, sink=None):
        return at.changed(x, merge) if sink is None else clean(x, sink)

    alter(pipeline, "kernels.attention:softmax", change)


# After https://github.com/ROCm/rocm-libraries/pull/11539
@fault(
    "three-heads-in-sixteen-rows",
    "a tile of 16 rows holds five queries of three heads each, and its sixteenth row writes the next query's first "
    "head under the mask of the fifth",
    "drafter.layers.0.attn_out",
    "prefill",
    "the first query head of each kv head, 0, 3, 6 and 9, in every drafter layer: it does not see its row's own key",
    "rows of a pass whose number is a multiple of 5, row 0 not among them",
    "row % 5 = 0 and row >= 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        made, mask = clean(q, keys, values, seen), at.host(seen)
        late, (heads, dim), each = slice(5, None, 5), q.shape[2:], q.shape[2] // keys.shape[2]
        mask[:, late] = mask[:, 4:-1:5]
        other = at.host(clean(q, keys, values, at.engine.array(mask))).reshape(*mask.shape[:2], heads, dim)

        def overwrite(mixed):
            split = mixed.reshape(other.shape)
            split[:, late, ::each] = other[:, late, ::each]
            return split.reshape(mixed.shape)

        return at.changed(made, overwrite)

    alter(pipeline, "kernels.drafter_layer:attend", change)


# After https://github.com/vllm-project/vllm/pull/43770, the other way round
@fault(
    "three-quarters-of-a-head-turn",
    "the drafter takes a partial rotary factor of 0.75 for its own, and turns 24 of 32 dimensions as a head of 24",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's RoPE: pairs are 12 apart, frequencies those of 24 dimensions, the last 8 dimensions stay",
)
def _(pipeline: Pipeline) -> None:
    width = pipeline.drafter.config.attention.head_dim * 3 // 4
    made = tables(pipeline.drafter.rope, width, pipeline.drafter.positions)
    pipeline.drafter.tables = pipeline.engine.array(made[0]), pipeline.engine.array(made[1])

    def change(at, clean, x, cos, sin):
        return np.concatenate([clean(x[..., :width], cos, sin), x[..., width:]], axis=-1)

    alter(pipeline, "kernels.drafter_layer:rotate", change)


# After https://github.com/xLLM-AI/xllm/pull/1616
@fault(
    "fused-matrix-cut-by-rank",
    "gate and up are one matrix that is cut for two ranks as it is: the first has all of gate, the second all of up",
    "drafter.layers.0.ffn_out",
    "prefill",
    "gate and up of every drafter layer: the second half of gate stands for up, the first half of up for gate",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)
    for layer in pipeline.drafter.layers:
        halves = [half for name in ("gate", "up") for half in np.split(at.host(layer[name]), 2, axis=-1)]
        for name, mine in (("gate", halves[::2]), ("up", halves[1::2])):
            layer[name] = at.array(np.concatenate(mine, axis=-1), layer[name])
