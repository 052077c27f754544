"""Faults of the drafter's attention and its rotation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("drafter attention", 23)
FIRST = "drafter.layers.0.attn_out"
ATTEND = "kernels.drafter_layer:attend"
DIM = 32
"""Of a head."""


@fault(
    "midlayer-scale-of-twice-the-width",
    "the midlayer's head dimension is its input width over its heads, 192 / 12 = 16: scores are scaled by 1 / 4",
    FIRST,
    "prefill",
    "scale of the scores in layer 0, too large by sqrt(2)",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, *rest):
        return clean(at.changed(q, lambda value: value * np.sqrt(2)) if at.layer == 0 else q, *rest)

    alter(pipeline, ATTEND, change)


@fault(
    "llama3-ramp-not-blended",
    "the llama3 scaling has no blend: wavelengths between the two bounds are divided by the factor as the long ones",
    FIRST,
    "prefill",
    "the drafter's rotary frequencies between the two bounds of llama3",
)
def _(pipeline: Pipeline) -> None:
    drafter = pipeline.drafter
    rope = drafter.rope
    plain = rope.theta ** -(np.arange(DIM // 2) / (DIM // 2))
    turns = rope.original * plain / (2 * np.pi)
    angles = np.arange(drafter.positions)[:, None] * np.where(turns > rope.fast, plain, plain / rope.factor)
    drafter.tables = tuple(drafter.engine.array(wave(angles).astype(np.float32)) for wave in (np.cos, np.sin))


@fault(
    "rotation-of-eight-query-heads",
    "the rotation of queries covers as many heads as the target has, 8 of the drafter's 12",
    FIRST,
    "prefill",
    "rotation of the query heads 8 to 11: there is none",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        turned = clean(x, cos, sin)
        return np.concatenate([turned[:, :, :8], x[:, :, 8:]], axis=2)

    alter(pipeline, "kernels.drafter_layer:rotate", change)


@fault(
    "fused-qkv-keys-one-head-early",
    "keys of layer 3 are cut out of the fused projection one head early: the last query head, then key heads 0 to 2",
    "drafter.layers.3.attn_out",
    "prefill",
    "key weight of layer 3",
)
def _(pipeline: Pipeline) -> None:
    weights = pipeline.drafter.layers[3]
    query = np.asarray(pipeline.engine.host(weights["q"]), np.float32)
    rewritten(pipeline, weights, "k", lambda value: np.concatenate([query[:, -DIM:], value[:, :-DIM]], axis=1))


@fault(
    "output-rows-turned-within-a-group",
    "layer 2: the output projection has the heads 3, 4 and 5 of the second group in the order 4, 5, 3",
    "drafter.layers.2.attn_out",
    "prefill",
    "rows of the output projection of layer 2 that belong to the heads 3 to 5",
)
def _(pipeline: Pipeline) -> None:
    def turned(value):
        heads = value.reshape(-1, DIM, value.shape[-1])
        heads[3:6] = heads[[4, 5, 3]]
        return heads.reshape(value.shape)

    rewritten(pipeline, pipeline.drafter.layers[2], "o", turned)


@fault(
    "third-masked-row-alone",
    "the mask of masked rows is laid out for two of them: those behind the second see committed rows and themselves",
    FIRST,
    "draft",
    "mask of the third masked row and those behind it: masked rows before their own are hidden",
    "masked rows behind the second",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        step = clean(rows)
        if at.kind != "draft" or at.masked < 3:
            return step
        seen = pipeline.engine.host(step.seen[None]).copy()
        first = int(rows.slots[0, at.committed])
        for row in range(2, at.masked):
            seen[0, at.committed + row, first : first + row] = False
        return replace(step, seen={None: pipeline.engine.array(seen)})

    replaced(pipeline, pipeline.drafter, "step", change)


@fault(
    "prefill-keys-end-at-old-length",
    "a prefill's attention ends at the number of keys that the prompt before had at its end, where it is longer",
    FIRST,
    "prefill",
    "keys that a row sees: none from the last length of the prompt before on",
    "from the second prompt on, prefill rows at positions from the last length of the prompt before on",
)
def _(pipeline: Pipeline) -> None:
    lengths = {"old": 10**6, "now": 10**6}

    def begun(at, clean, *given):
        lengths["old"] = lengths["now"]
        return clean(*given)

    def change(at, clean, q, keys, values, seen, *rest):
        if at.kind == "prefill":
            row = np.arange(seen.shape[-1])
            return clean(q, keys, values, np.logical_and(seen, row < lengths["old"]), *rest)
        lengths["now"] = pipeline.drafter.length + at.committed
        return clean(q, keys, values, seen, *rest)

    replaced(pipeline, pipeline, "_admit", begun)
    alter(pipeline, ATTEND, change)
