"""Third set: faults of the drafter's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("drafter layers", 3)
LAYER = "kernels.drafter_layer"
ATTEND = f"{LAYER}:attend"
EACH, DIM, TILE = 3, 32, 128
"""Query heads of a kv group; columns of a head; keys that are added up at a time."""


@fault(
    "last-query-tile-not-cleared",
    "the last 128 query columns of layer 1 are added to those of the 128 columns before",
    "drafter.layers.1.attn_out",
    "prefill",
    "query projection of layer 1, columns 256 to 383",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        def added(value):
            value[..., 256:] += value[..., 128:256]
            return value

        made = clean(x, weight)
        return at.changed(made, added) if weight is pipeline.drafter.layers[1]["q"] else made

    alter(pipeline, f"{LAYER}:linear", change)


@fault(
    "fifth-committed-key-not-seen",
    "masked rows of layer 2 see four committed rows of their pass at the most",
    "drafter.layers.2.attn_out",
    "draft",
    "mask of layer 2, key of the fifth committed row",
    "masked rows behind a round that accepted all 4 drafts, layer 2",
    "pass = draft and accepted = 4 and row >= 5 and layer = 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        def hidden(value):
            value[:, 5 : 5 + at.masked, at.positions[4]] = False
            return value

        there = at.layer == 2 and at.committed == 5
        return clean(q, keys, values, at.changed(seen, hidden) if there else seen)

    alter(pipeline, ATTEND, change)


@fault(
    "own-values-arrive-late",
    "in even rounds layer 1's attention reads the values of its pass' own rows before they are written",
    "drafter.layers.1.attn_out",
    "draft",
    "values of a pass' own rows in layer 1",
    "draft passes of even rounds, layer 1",
    "pass = draft and round % 2 = 0 and layer = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        def unwritten(value):
            value[:, at.positions[: at.committed + at.masked]] = 0
            return value

        there = at.layer == 1 and at.kind == "draft" and at.round % 2 == 0
        return clean(q, keys, at.changed(values, unwritten) if there else values, seen)

    alter(pipeline, ATTEND, change)


@fault(
    "denominator-of-one-tile",
    "layer 3's weights are over the sum of the first 128 keys alone",
    "drafter.layers.3.attn_out",
    "draft",
    "softmax denominator of layer 3",
    "rows at positions from 128 on, layer 3",
    "position >= 128 and layer = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        made = clean(q, keys, values, seen)
        if at.layer != 3 or keys.shape[1] <= TILE:
            return made
        scores = np.einsum("bsnd,bpnd->bsnp", at.host(q), np.repeat(at.host(keys), EACH, axis=2)) * DIM**-0.5
        scores = np.where(at.host(seen)[:, :, None], scores, -1e30)
        parts = np.exp(scores - scores.max(axis=-1, keepdims=True))
        factor = parts.sum(axis=-1) / parts[..., :TILE].sum(axis=-1)
        return at.changed(made, lambda value: value * np.repeat(factor, DIM, axis=-1))

    alter(pipeline, ATTEND, change)


@fault(
    "score-scale-of-four-digits",
    "the drafter's scores are scaled by 0.1768 where 32 ** -0.5 is meant",
    "drafter.layers.0.attn_out",
    "prefill",
    "score scale of every layer",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, *rest):
        return clean(at.changed(q, lambda value: value * (0.1768 / DIM**-0.5)), *rest)

    alter(pipeline, ATTEND, change)
