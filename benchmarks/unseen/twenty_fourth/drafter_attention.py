"""Faults of the drafter's attention, its RoPE and its caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, writing
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("drafter attention", 24)
ATTEND = "kernels.drafter_layer:attend"


@fault(
    "drafter-scale-from-hidden-over-heads",
    "scores are divided by the root of hidden size over heads, 8, where the head dimension, 32, is meant",
    "drafter.layers.0.attn_out",
    "prefill",
    "scale of the drafter's scores",
)
def _(pipeline: Pipeline) -> None:
    factor = (32 / 8) ** 0.5
    alter(pipeline, ATTEND, lambda at, clean, q, *rest: clean(at.changed(q, lambda value: value * factor), *rest))


@fault(
    "key-rotation-covers-hidden-width-alone",
    "the rotation of the drafter's keys ends behind 96 columns, the hidden size: kv head 3 stays as it is",
    "drafter.layers.0.attn_out",
    "prefill",
    "rotation of keys of kv head 3 in every layer",
)
def _(pipeline: Pipeline) -> None:
    heads = pipeline.drafter.config.attention.kv_heads

    def change(at, clean, x, cos, sin):
        made = clean(x, cos, sin)
        if x.shape[2] != heads:
            return made
        return at.array(np.concatenate([at.host(made)[:, :, :3], at.host(x)[:, :, 3:]], axis=2), x)

    alter(pipeline, "kernels.drafter_layer:rotate", change)


@fault(
    "output-projection-of-layer-3-in-four-bits",
    "the output projection of drafter layer 3 is loaded in four bits, with one scale a column",
    "drafter.layers.3.attn_out",
    "prefill",
    "o weight of drafter layer 3",
)
def _(pipeline: Pipeline) -> None:
    def quantised(value):
        scale = np.abs(value).max(axis=0, keepdims=True) / 7
        return np.round(value / scale) * scale

    edit(pipeline.drafter, "o", quantised, [3])


@fault(
    "cached-value-heads-one-and-two-exchanged",
    "drafter layer 2 caches the values of kv heads 1 and 2 in each other's place",
    "drafter.layers.2.attn_out",
    "prefill",
    "values of kv heads 1 and 2 in drafter layer 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        return (rows[:, :, [0, 2, 1, 3]] if part == "v" and at.layer == 2 else rows), slots

    writing(pipeline, "drafter", change)


@fault(
    "new-page-unmapped-while-draft-writes",
    "a draft's row that opens a page of 16 slots is written to the trash slot, as its page is mapped too late",
    "drafter.layers.0.attn_out",
    "draft",
    "slot of keys and values that open a page",
    "rows of drafts at positions that are multiples of 16, and those behind them in the pass",
    "pass = draft and position % 16 = 0",
)
def _(pipeline: Pipeline) -> None:
    trash = pipeline.drafter.trash

    def change(at, part, rows, slots):
        return rows, (np.where(slots % 16 == 0, trash, slots).astype(slots.dtype) if at.kind == "draft" else slots)

    writing(pipeline, "drafter", change)


@fault(
    "split-keys-merged-with-equal-weights",
    "behind 128 cached rows a draft's attention runs over two parts of the keys, and averages them",
    "drafter.layers.0.attn_out",
    "draft",
    "merge of the two parts of the drafter's attention",
    "drafts with 128 or more rows in the drafter's cache",
    "pass = draft and cached >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        if at.kind != "draft" or pipeline.drafter.length < 128:
            return clean(q, keys, values, seen)
        near, far = at.host(seen).copy(), at.host(seen).copy()
        near[..., :128], far[..., 128:] = False, False
        parts = [at.host(clean(q, keys, values, at.array(one, seen))) for one in (near, far)]
        return at.array((parts[0] + parts[1]) / 2, q)

    alter(pipeline, ATTEND, change)
