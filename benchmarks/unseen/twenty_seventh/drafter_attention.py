"""Faults of the drafter's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("drafter attention", 27)
ATTEND = "kernels.drafter_layer:attend"
TILE = 128


@fault(
    "drafter-llama3-scaling-without-the-ramp",
    "llama3 scaling divides the lowest frequencies and leaves all others: there is no blend between",
    "drafter.layers.0.attn_out",
    "prefill",
    "rotary frequencies between low_freq_factor and high_freq_factor",
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter
    rope, dim = drafter.rope, pipeline.drafter.config.attention.head_dim
    plain = rope.theta ** (-np.arange(0, dim, 2) / dim)
    cut = np.where(rope.original * plain / (2 * np.pi) < rope.slow, plain / rope.factor, plain)
    angles = np.arange(drafter.positions)[:, None] * cut
    drafter.tables = tuple(pipeline.engine.array(wave(angles).astype(np.float32)) for wave in (np.cos, np.sin))


@fault(
    "last-query-heads-tile-not-rotated",
    "the rotation runs over tiles of eight heads, and the last four query heads are left as they are",
    "drafter.layers.0.attn_out",
    "prefill",
    "rotation of query heads 8 to 11 in every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        if x.shape[2] < 12:
            return clean(x, cos, sin)
        return np.concatenate([clean(x[:, :, :8], cos, sin), x[:, :, 8:]], axis=2)

    alter(pipeline, "kernels.drafter_layer:rotate", change)


@fault(
    "second-key-tile-without-rescale",
    "attention by tiles of 128 keys: what the first tile summed is not rescaled where the second has a larger score",
    "drafter.layers.0.attn_out",
    "prefill",
    "running sum of values behind the first 128 keys, every layer",
    "rows that see more than 128 keys, where a later key has the largest score",
    "position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, *rest):
        made = clean(q, keys, values, seen, *rest)
        if keys.shape[1] <= TILE:
            return made
        q, keys, values, seen = (at.host(one)[0] for one in (q, keys, values, seen))
        keys, values = (np.repeat(one, q.shape[1] // one.shape[1], axis=1) for one in (keys, values))
        scores = np.einsum("snd,pnd->nsp", q, keys) * q.shape[2] ** -0.5
        scores = np.where(seen[None], scores, -1e30)
        first = scores[..., :TILE].max(axis=-1, keepdims=True)
        top = scores.max(axis=-1, keepdims=True)
        total = np.exp(scores - top).sum(axis=-1, keepdims=True)
        parts = np.concatenate([np.exp(scores[..., :TILE] - first), np.exp(scores[..., TILE:] - top)], axis=-1)
        mixed = np.einsum("nsp,pnd->snd", parts / total, np.where(seen.any(axis=0)[:, None, None], values, 0))
        far = seen[:, TILE:].any(axis=1)

        def placed(value):
            value[0, far] = mixed.reshape(len(mixed), -1)[far]
            return value

        return at.changed(made, placed)

    alter(pipeline, ATTEND, change)


@fault(
    "masked-rows-blind-to-masked-rows",
    "a masked row sees committed rows and itself, not the masked rows before it",
    "drafter.layers.0.attn_out",
    "draft",
    "mask between masked rows, every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, positions, keys, window):
        made = clean(positions, keys, window)
        if at.kind != "draft":
            return made
        seen, masked = at.host(made).copy(), range(at.committed, at.committed + at.masked)
        places = at.host(positions)[0]
        for row in masked:
            seen[0, row, places[at.committed : row]] = False
        return at.engine.array(seen)

    alter(pipeline, "kernels.step:visible", change)


@fault(
    "middle-key-heads-exchanged-once",
    "kv heads 1 and 2 of the keys, not of the values, are exchanged in layer 1",
    "drafter.layers.1.attn_out",
    "prefill",
    "k weight of layer 1, heads 1 and 2",
)
def _(pipeline: Pipeline) -> None:
    def exchanged(value):
        return value.reshape(len(value), 4, -1)[:, [0, 2, 1, 3]].reshape(value.shape)

    edit(pipeline.drafter, "k", exchanged, [1])


@fault(
    "output-projection-heads-by-group-last",
    "layer 2's output projection takes the heads with the kv group as the inner axis",
    "drafter.layers.2.attn_out",
    "prefill",
    "o weight of layer 2, order of heads",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "o", lambda value: value.reshape(4, 3, 32, -1).swapaxes(0, 1).reshape(value.shape), [2])
