"""Second set: faults of the target's attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter, replaced, scaled
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("target attention", 2)
QUERIES, WINDOW, TILE = 8, 32, 64
"""Heads of queries; keys of a sliding window; keys that the attention takes at a time."""


@fault(
    "v-group-read-one-column-on",
    "kv group 1's value columns of layer 2 are read one column on",
    "target.layers.2.v",
    "prefill",
    "value weight of kv group 1 of layer 2",
)
def _(pipeline: Pipeline) -> None:
    def moved(value):
        value[:, 32:64] = np.roll(value[:, 32:64], -1, axis=1)
        return value

    edit(pipeline.target, "v", moved, [2])


@fault(
    "o-bias-of-both-halves",
    "with fewer than 8 rows both halves of the output projection add its bias",
    "target.layers.0.attn_out",
    "verify",
    "output bias of every layer",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        return clean(x, weight, at.changed(bias, scaled(slice(None), 2.0)) if x.shape[1] < 8 else bias)

    alter(pipeline, "kernels.target_layer:row_parallel", change)


@fault(
    "q-bias-lost-behind-row-128",
    "prefill rows from 128 on go without the query bias in layer 6",
    "target.layers.6.q",
    "prefill",
    "query bias of layer 6",
    "prefill rows from 128 on, layer 6",
    "pass = prefill and row >= 128 and layer = 6",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias=None):
        made = clean(x, weight, bias)
        if weight is not pipeline.target.layers[6]["q"] or x.shape[1] <= 128:
            return made
        return at.changed(made, lambda value: np.concatenate([value[:, :128], at.host(clean(x, weight))[:, 128:]], 1))

    alter(pipeline, "kernels.target_layer:linear", change)


@fault(
    "key-rotation-products-rounded",
    "the four products of the key's rotation are rounded to bfloat16 in layer 3",
    "target.layers.3.k",
    "prefill",
    "rotation of layer 3's keys",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        if at.layer != 3 or x.shape[2] == QUERIES:
            return clean(x, cos, sin)
        wide, (c, s) = at.host(x), (at.host(one)[:, :, None] for one in (cos, sin))
        first, second = np.split(wide, 2, axis=-1)
        a, b, c, d = (
            (one).astype(bfloat16).astype(np.float32) for one in (first * c, second * s, second * c, first * s)
        )
        return at.array(np.concatenate([a - b, c + d], axis=-1), x)

    alter(pipeline, "kernels.target_layer:rotate", change)


@fault(
    "sinks-by-group",
    "both heads of a kv group take the sink of the first of them in layer 5",
    "target.layers.5.attn_out",
    "prefill",
    "sinks of the odd heads of layer 5",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "sinks", lambda value: np.repeat(value[::2], 2), [5])


@fault(
    "first-key-tile-not-rescaled",
    "what the first 64 keys gave is not rescaled where a later key has a larger score, in layer 7",
    "target.layers.7.attn_out",
    "prefill",
    "running sum over key tiles of layer 7",
    "rows from 64 on of which a head has its largest score behind key 63, layer 7",
    "position >= 64 and layer = 7",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if at.layer != 7 or keys.shape[1] <= TILE:
            return clean(q, keys, values, seen, sinks)
        host_q, host_k = at.host(q), np.repeat(at.host(keys), 2, axis=2)
        scores = np.einsum("bsnd,bpnd->bsnp", host_q, host_k) * host_q.shape[-1] ** -0.5
        scores = np.where(at.host(seen)[:, :, None], scores, -1e30)
        before, after = (one.max(axis=-1) for one in (scores[..., :TILE], scores[..., TILE:]))
        factor = np.exp(np.clip(after - before, 0, 60))[..., None]
        whole = at.host(clean(q, keys, values, seen, sinks))
        top = np.maximum(scores.max(axis=-1), at.host(sinks))
        parts = np.exp(scores - top[..., None])
        total = parts.sum(axis=-1) + np.exp(at.host(sinks) - top)
        mixed = np.einsum("bsnp,bpnd->bsnd", parts[..., :TILE], np.repeat(at.host(values[:, :TILE]), 2, axis=2))
        return at.array(whole + ((factor - 1) * mixed / total[..., None]).reshape(whole.shape), q)

    alter(pipeline, "kernels.target_layer:attend", change)


@fault(
    "window-of-the-first-row",
    "all rows of a verify pass take the window of its first row in even layers",
    "target.layers.0.attn_out",
    "verify",
    "window of even layers",
    "verify rows but the first, even layers",
    "pass = verify and row >= 1 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        made = clean(rows)
        if at.kind != "verify":
            return made
        near = rows.positions[0, 0] - np.arange(made.span) < WINDOW
        return replace(made, seen=made.seen | {WINDOW: at.array(at.host(made.seen[None]) & near, made.seen[None])})

    replaced(pipeline, pipeline.target, "step", change)
