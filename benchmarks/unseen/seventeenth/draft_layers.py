"""Faults of the drafter's attention and of its layers."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("drafter layers", 17)
ATTEND, OUT = "kernels.drafter_layer:attend", "drafter.layers.0.attn_out"
SPLIT, LAST = 128, 135


@fault(
    "queries-and-keys-permuted",
    "the drafter's q and k weights were permuted for the rotation of neighbours and are rotated by halves",
    OUT,
    "prefill",
    "q and k weights of every layer of the drafter, order of columns within a head",
)
def _(pipeline: Pipeline) -> None:
    def permuted(value):
        return value.reshape(len(value), -1, 2, 16).swapaxes(2, 3).reshape(value.shape)

    edit(pipeline.drafter, "q k", permuted, every(pipeline.drafter))


@fault(
    "scale-of-hidden-over-heads",
    "the drafter scales scores by a head dim of hidden size over heads, 8, head_dim is not read",
    OUT,
    "prefill",
    "score scale of every layer of the drafter",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, *rest):
        return clean(at.changed(q, lambda value: 2 * value), *rest)

    alter(pipeline, ATTEND, change)


@fault(
    "heads-padded-to-sixteen",
    "12 heads were padded to 16 for four kv groups, so head h reads group h // 4, its own is h // 3",
    OUT,
    "prefill",
    "kv group of the query heads of every layer of the drafter",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        each = (at.changed(one, lambda value: value[:, :, np.arange(12) // 4]) for one in (keys, values))
        return clean(q, *each, seen)

    alter(pipeline, ATTEND, change)


@fault(
    "rotation-clamped-at-135",
    "the drafter's cos and sin tables have 136 rows, later positions take the last one",
    OUT,
    "draft",
    "rotation of the drafter's rows at positions from 136 on",
    "drafter rows at positions from 136 on",
    "position > 135",
)
def _(pipeline: Pipeline) -> None:
    model, at = pipeline.drafter, moment(pipeline)

    def clamped(value):
        value[LAST + 1 :] = value[LAST]
        return value

    model.tables = tuple(at.changed(table, clamped) for table in model.tables)


@fault(
    "draft-splits-averaged-at-128",
    "draft passes attend to keys before and from 128 on apart, and take the mean of both results",
    OUT,
    "draft",
    "attention of every layer of the drafter, weight of the two splits of keys",
    "draft rows at positions from 128 on",
    "pass = draft and position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        shown = at.host(seen)
        late = shown[..., SPLIT:].any(axis=-1)[..., None]
        if not at.committed or not late.any():
            return clean(q, keys, values, seen)
        second = np.arange(shown.shape[-1]) >= SPLIT
        parts = [clean(q, keys, values, at.array(shown & of, seen)) for of in (~second, second)]
        other = at.host(parts[1])
        return at.changed(parts[0], lambda value: np.where(late, (value + other) / 2, value))

    alter(pipeline, ATTEND, change)


@fault(
    "gate-tile-not-advanced",
    "rows from the fifth on of a draft pass have the gate of the row four before in layer 2",
    "drafter.layers.2.ffn_out",
    "draft",
    "gate projection of layer 2, second tile of four rows",
    "draft rows from the fifth on, layer 2",
    "pass = draft and row >= 4 and layer = 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        made = clean(x, weights)
        if at.layer != 2 or not at.committed:
            return made
        rows, (gate, up, down) = at.host(x), (at.host(weights[name]) for name in ("gate", "up", "down"))
        wide = rows[:, :-4] @ gate

        def stale(value):
            value[:, 4:] = (rows[:, 4:] @ up * wide / (1 + np.exp(-wide))) @ down
            return value

        return at.changed(made, stale)

    alter(pipeline, "kernels.drafter_layer:_mlp", change)
