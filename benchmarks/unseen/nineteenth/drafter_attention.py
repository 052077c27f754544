"""Faults of the drafter's attention: rotation, scale, tiles of keys."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("drafter attention", 19)
ATTENTION, ATTEND = "drafter.layers.0.attn_out", "kernels.drafter_layer:attend"
TILE = 128


@fault(
    "masked-queries-at-last-committed-position",
    "queries of masked rows are rotated by the last committed row's position, their keys by their own",
    ATTENTION,
    "draft",
    "rotation of queries in masked rows",
)
def _(pipeline: Pipeline) -> None:
    heads = pipeline.drafter.config.attention.kv_heads

    def change(at, clean, x, cos, sin):
        if not at.masked or x.shape[2] == heads:
            return clean(x, cos, sin)
        row = np.minimum(np.arange(x.shape[1]), at.committed - 1)
        return clean(x, *(at.changed(table, lambda value: value[:, row]) for table in (cos, sin)))

    alter(pipeline, "kernels.drafter_layer:rotate", change)


@fault(
    "scale-of-derived-head-dim",
    "scores are divided by the root of hidden size over heads, 8, where the head's size is 32",
    ATTENTION,
    "prefill",
    "scale of the drafter's scores",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, *rest):
        derived = pipeline.drafter.config.hidden / q.shape[2]
        return clean(at.changed(q, lambda value: value * (q.shape[3] / derived) ** 0.5), *rest)

    alter(pipeline, ATTEND, change)


def not_rescaled(q, keys, values, seen):
    """Softmax attention over tiles of keys whose running sums keep the scale of a smaller maximum, float32 on hosts."""
    each = q.shape[2] // keys.shape[2]
    keys, values = (np.repeat(one[0], each, axis=1) for one in (keys, values))
    scores = np.einsum("snd,pnd->nsp", q[0], keys) * q.shape[3] ** -0.5
    scores = np.where(seen[0][None], scores, -1e30)
    top, total, mixed = -1e30, 0.0, 0.0
    for begin in range(0, scores.shape[-1], TILE):
        part = scores[..., begin : begin + TILE]
        top = np.maximum(top, part.max(axis=-1, keepdims=True))
        weights = np.exp(part - top)
        total = total + weights.sum(axis=-1, keepdims=True)
        mixed = mixed + np.einsum("nsp,pnd->nsd", weights, values[begin : begin + TILE])
    return (mixed / total).transpose(1, 0, 2).reshape(1, q.shape[1], -1)


@fault(
    "running-sum-not-rescaled",
    "where a later tile of 128 keys raises the maximum, the sums of the tiles before are not rescaled",
    ATTENTION,
    "prefill",
    "online softmax of the drafter's attention over more than one tile of keys",
    "rows at position 128 and behind",
    "position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, *rest):
        made = clean(q, keys, values, seen, *rest)
        shown = at.host(seen)
        far = shown[0, :, TILE:].any(axis=-1)
        if not far.any():
            return made
        whole = at.host(made)
        held = np.where(shown.any(axis=1)[:, :, None, None], at.host(values), 0)
        whole[0, far] = not_rescaled(at.host(q), at.host(keys), held, shown)[0, far]
        return at.array(whole, made)

    alter(pipeline, ATTEND, change)
