"""Faults of the drafter's attention that hold under a condition."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("attention of the drafter, at times", 25)
FIRST, KERNELS = "drafter.layers.0.attn_out", "kernels.drafter_layer:"
TILE, DIM = 64, 32


@fault(
    "running-sum-unscaled-at-new-maximum",
    "attention by tiles of 64 keys does not rescale the sum of values where a later tile has a larger score",
    FIRST,
    "prefill",
    "running sum of the drafter's tiled softmax, in every layer",
    "rows that see more than 64 keys and whose largest score is not in the first tile",
    "position >= 64",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        made, wide, held = at.host(clean(q, keys, values, seen)), at.host(q), at.host(seen)
        k, v = at.host(keys), at.host(values)
        each = wide.shape[2] // k.shape[2]
        for head in range(wide.shape[2]):
            group = head // each
            scores = np.where(held[0], wide[0, :, head] @ k[0, :, group].T * DIM**-0.5, -1e30)
            top, total, mixed = np.full(len(scores), -1e30), 0.0, 0.0
            for start in range(0, scores.shape[1], TILE):
                part = scores[:, start : start + TILE]
                new = np.maximum(top, part.max(axis=1))
                weights = np.where(part > -1e29, np.exp(part - new[:, None]), 0.0)
                total = total * np.exp(np.maximum(top - new, -80.0)) + weights.sum(axis=1)
                mixed = (
                    mixed + weights @ np.where(held[0].any(axis=0)[:, None], v[0, :, group], 0)[start : start + TILE]
                )
                top = new
            late = held[0].sum(axis=1) > TILE
            made[0, late, head * DIM : (head + 1) * DIM] = (mixed / np.maximum(total, 1e-30)[:, None])[late]
        return at.array(made, q)

    alter(pipeline, KERNELS + "attend", change)


@fault(
    "long-drafts-lose-oldest-cache-page",
    "a draft behind 128 cached rows or more does not see the first page of 16",
    FIRST,
    "draft",
    "mask of draft passes, keys 0 to 15, in every layer",
    "draft passes behind 128 cached rows or more",
    "pass = draft and cached >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        if at.kind == "draft" and pipeline.drafter.length >= 128:
            allowed = at.host(seen)
            allowed[..., :16] = False
            seen = at.array(allowed, seen)
        return clean(q, keys, values, seen)

    alter(pipeline, KERNELS + "attend", change)


@fault(
    "draft-queries-share-first-rows-angle",
    "all queries of a draft pass turn by the position of its first row; keys turn by their own",
    FIRST,
    "draft",
    "rotation of the drafter's queries, in every layer",
    "rows behind the first of a draft pass",
    "pass = draft and row > 0",
)
def _(pipeline: Pipeline) -> None:
    heads = pipeline.drafter.config.attention.heads

    def change(at, clean, x, cos, sin):
        if at.kind == "draft" and x.shape[2] == heads:
            cos, sin = cos[:, :1] + 0 * cos, sin[:, :1] + 0 * sin
        return clean(x, cos, sin)

    alter(pipeline, KERNELS + "rotate", change)
