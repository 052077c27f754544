"""Faults of the drafter's attention: heads, scale, splits, mask and rope."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("drafter attention", 22)
OUT = "drafter.layers.0.attn_out"
ATTEND = "kernels.drafter_layer:attend"
SPLIT = 128


@fault(
    "group-size-of-target",
    "the drafter shares each kv head among 2 query heads, as the target does, where 3 are meant",
    OUT,
    "prefill",
    "kv head of query heads 2 to 8: h div 2, 3 at the most",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        heads = np.minimum(np.arange(q.shape[2]) // 2, keys.shape[2] - 1)
        return clean(q, *(at.changed(one, lambda value: value[:, :, heads]) for one in (keys, values)), seen)

    alter(pipeline, ATTEND, change)


@fault(
    "head-size-from-hidden",
    "scores are divided by the root of hidden / heads = 8 where the head's own size is 32",
    OUT,
    "prefill",
    "scale of the drafter's scores, twice too large",
)
def _(pipeline: Pipeline) -> None:
    alter(pipeline, ATTEND, lambda at, clean, q, *rest: clean(at.changed(q, lambda value: 2 * value), *rest))


@fault(
    "llama3-ramp-not-clipped",
    "the ramp of llama3's rope scaling is not clipped to 0 and 1",
    OUT,
    "prefill",
    "the drafter's rope: frequencies outside the ramp",
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter
    rope, dim = drafter.rope, drafter.config.attention.head_dim
    plain = rope.theta ** (-np.arange(0, dim, 2) / dim)
    smooth = (rope.original * plain / (2 * math.pi) - rope.slow) / (rope.fast - rope.slow)
    angles = np.arange(drafter.positions)[:, None] * (plain * smooth + plain / rope.factor * (1 - smooth))
    drafter.tables = tuple(drafter.engine.array(wave(angles).astype(np.float32)) for wave in (np.cos, np.sin))


@fault(
    "split-merge-without-maximum",
    "a draft pass attends in splits of 128 keys, and adds them without bringing them to one maximum",
    OUT,
    "draft",
    "merge of the splits of the drafter's attention, in every layer",
    "rows of draft passes that see more than 128 keys",
    "pass = draft and position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        right = clean(q, keys, values, seen)
        if at.kind != "draft" or keys.shape[1] <= SPLIT:
            return right
        rows, held, sees = at.host(q)[0], [at.host(one)[0] for one in (keys, values)], at.host(seen)[0]
        each = rows.shape[1] // held[0].shape[1]
        k, v = (np.repeat(np.where(sees.any(0)[:, None, None], one, 0), each, axis=1) for one in held)
        scores = np.einsum("snd,pnd->nsp", rows, k) * rows.shape[-1] ** -0.5
        scores = np.where(sees, scores, -1e30)
        mixed, total = 0.0, 0.0
        for part in (slice(0, SPLIT), slice(SPLIT, None)):
            top = scores[..., part].max(-1, keepdims=True)
            weights = np.where(sees[:, part], np.exp(scores[..., part] - top), 0)
            mixed = mixed + np.einsum("nsp,pnd->snd", weights, v[part])
            total = total + weights.sum(-1).T[..., None]
        far = (at.positions >= SPLIT)[:, None]
        return at.changed(right, lambda value: np.where(far, (mixed / total).reshape(value.shape[1:]), value[0])[None])

    alter(pipeline, ATTEND, change)


@fault(
    "turns-kept-for-same-shape",
    "cos and sin of a draft pass are kept, and taken again where the next one has as many rows",
    OUT,
    "draft",
    "the drafter's rope: turned by the positions of an earlier pass",
    "draft passes with as many rows as the one before",
)
def _(pipeline: Pipeline) -> None:
    kept = {}

    def change(at, clean, rows):
        made = clean(rows)
        if at.kind != "draft":
            return made
        if kept.get("count") != rows.count:
            kept.update(count=rows.count, turns=(made.cos, made.sin))
        return replace(made, cos=kept["turns"][0], sin=kept["turns"][1])

    replaced(pipeline, pipeline.drafter, "step", change)


@fault(
    "masked-rows-miss-committed",
    "the mask of masked rows is made for one committed row: they do not see those in front of it in their pass",
    OUT,
    "draft",
    "mask of masked rows: the pass's committed rows but the last",
    "masked rows of drafts behind a round that accepted a draft",
    "pass = draft and accepted >= 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        made = clean(rows)
        if at.kind != "draft" or at.committed < 2:
            return made
        seen, count = at.host(made.seen[None]).copy(), at.committed
        seen[:, count : rows.count, rows.slots[0, : count - 1]] = False
        return replace(made, seen={None: at.array(seen, made.seen[None])})

    replaced(pipeline, pipeline.drafter, "step", change)
