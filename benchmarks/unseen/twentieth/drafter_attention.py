"""Faults of the drafter's rope, masks and attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced, scaled
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("drafter attention", 20)
DIM, HEADS, TILE = 32, 12, 128
"""Of a head; query heads; keys of a split."""


@fault(
    "llama3-ramp-upside-down",
    "the llama3 scaling blends its middle frequencies by 1 - smooth where smooth is meant",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's rope, frequencies between the low and the high bound",
)
def _(pipeline: Pipeline) -> None:
    drafter, rope = pipeline.drafter, pipeline.drafter.rope
    plain = rope.theta ** (-np.arange(0, DIM, 2) / DIM)
    smooth = np.clip((rope.original * plain / (2 * np.pi) - rope.slow) / (rope.fast - rope.slow), 0, 1)
    smooth = np.where((smooth > 0) & (smooth < 1), 1 - smooth, smooth)
    angles = np.arange(drafter.positions)[:, None] * (plain * smooth + plain / rope.factor * (1 - smooth))
    waves = (wave(angles) * rope.magnitude for wave in (np.cos, np.sin))
    drafter.tables = tuple(drafter.engine.array(wave.astype(np.float32)) for wave in waves)


@fault(
    "drafter-scale-of-three-digits",
    "the drafter's scores are multiplied by 0.177 where 1 / sqrt(32) is meant",
    "drafter.layers.0.attn_out",
    "prefill",
    "scale of the scores in every layer",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    factor = scaled(slice(None), 0.177 * DIM**0.5)
    alter(pipeline, "kernels.drafter_layer:attend", lambda at, clean, q, *rest: clean(at.changed(q, factor), *rest))


@fault(
    "key-heads-exchanged",
    "heads 1 and 2 of layer 2's k projection are loaded in each other's place, those of v are right",
    "drafter.layers.2.attn_out",
    "prefill",
    "kv heads 1 and 2 of layer 2's keys",
)
def _(pipeline: Pipeline) -> None:
    def exchanged(value):
        heads = value.reshape(len(value), -1, DIM)[:, [0, 2, 1, 3]]
        return heads.reshape(value.shape)

    rewritten(pipeline, pipeline.drafter.layers[2], "k", exchanged)


@fault(
    "masked-rows-alone",
    "a masked row sees the committed rows and itself, not the masked rows in front of it",
    "drafter.layers.0.attn_out",
    "draft",
    "mask of the masked rows from the second one on",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, positions, *rest):
        step, sits, first = clean(positions, *rest), at.host(positions)[0], at.committed
        seen = at.host(step.seen[None]).copy()
        for row in range(first, first + at.masked):
            seen[0, row, sits[first] : sits[row]] = False
        return replace(step, seen={None: at.array(seen, step.seen[None])})

    replaced(pipeline, pipeline.drafter, "make_step", change)


@fault(
    "queries-turned-late-at-tile-end",
    "the last query of each tile of 32 positions takes the row of the rope table in front of its own",
    "drafter.layers.0.attn_out",
    "prefill",
    "rotation of the drafter's queries",
    "rows whose position is the last of a tile of 32",
    "position % 32 = 31",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        if x.shape[2] != HEADS:
            return clean(x, cos, sin)
        rows = np.flatnonzero((at.positions % 32 == 31) & (at.positions < pipeline.drafter.positions))

        def late(turned, table):
            turned = turned.copy()
            turned[0, rows] = at.host(table)[at.positions[rows] - 1]
            return turned

        tables = zip((cos, sin), pipeline.drafter.tables, strict=True)
        return clean(x, *(at.array(late(at.host(one), table), one) for one, table in tables))

    alter(pipeline, "kernels.drafter_layer:rotate", change)


@fault(
    "split-not-rescaled",
    "attention runs over tiles of 128 keys; what the first one summed is not rescaled where the second has a larger "
    "score",
    "drafter.layers.0.attn_out",
    "prefill",
    "softmax of the drafter's attention over more than one tile of keys",
    "rows at or behind position 128, whose keys fill more than one tile",
    "position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        right, shown = clean(q, keys, values, seen), at.host(seen)[0]
        if shown.shape[1] <= TILE:
            return right
        k, v = (np.repeat(at.host(one)[0], q.shape[2] // one.shape[2], axis=1) for one in (keys, values))
        v = np.where(shown.any(axis=0)[:, None, None], v, 0)
        scores = np.einsum("shd,phd->hsp", at.host(q)[0], k) * DIM**-0.5
        scores = np.where(shown, scores, -1e30)
        top = scores.max(axis=-1, keepdims=True) + np.zeros_like(scores)
        top[..., :TILE] = scores[..., :TILE].max(axis=-1, keepdims=True)
        shares = np.exp(scores - top)
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hsp,phd->shd", shares, v).reshape(right.shape)
        far = shown[:, TILE:].any(axis=1)[None, :, None]
        return at.array(np.where(far, mixed, at.host(right)), right)

    alter(pipeline, "kernels.drafter_layer:attend", change)
