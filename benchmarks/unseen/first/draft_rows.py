"""Faults of the drafter's layers that some rows or passes have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.kernels.norm import llama_norm
from parity.device.pipeline import Pipeline

fault = Part("drafter layers")
ATTEND, MLP = "kernels.drafter_layer:attend", "kernels.drafter_layer:_mlp"


@fault(
    "masked-rows-turn-alike",
    "all masked rows are rotated as the first one is",
    "drafter.layers.0.attn_out",
    "draft",
    "rotation of masked rows",
    "masked rows but the first",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        step, first = clean(rows), at.committed

        def alike(value):
            value[:, first : first + at.masked] = value[:, first : first + 1]
            return value

        return replace(step, cos=at.changed(step.cos, alike), sin=at.changed(step.sin, alike)) if at.masked else step

    replaced(pipeline, pipeline.drafter, "step", change)


@fault(
    "masked-rows-blind-to-each-other",
    "masked rows of layer 3 do not see the masked rows before them",
    "drafter.layers.3.attn_out",
    "draft",
    "mask of layer 3",
    "masked rows but the first, layer 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        def blind(value):
            first = at.positions[at.committed]
            for row in range(at.committed, at.committed + at.masked):
                value[:, row, first : at.positions[row]] = False
            return value

        there = at.layer == 3 and at.masked
        return clean(q, keys, values, at.changed(seen, blind) if there else seen)

    alter(pipeline, ATTEND, change)


@fault(
    "long-context-seen-in-part",
    "layer 1 sees the last 64 rows alone where 136 or more are cached",
    "drafter.layers.1.attn_out",
    "draft",
    "mask of layer 1",
    "draft passes over 136 cached rows or more, layer 1",
    "pass = draft and cached >= 136 and layer = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        def near(value):
            return value & (at.positions[:, None] - np.arange(value.shape[-1]) < 64)

        there = at.layer == 1 and pipeline.drafter.length >= 136
        return clean(q, keys, values, at.changed(seen, near) if there else seen)

    alter(pipeline, ATTEND, change)


@fault(
    "third-committed-row-keeps-the-first-hidden",
    "committed rows behind the second have the fused hidden two before",
    "drafter.layers.0.attn_out",
    "draft",
    "input of layer 0",
    "committed rows of draft passes from row 2 on",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, embedded, fused, *rest):
        def stale(value):
            value[:, 2 : at.committed] = value[:, : at.committed - 2].copy()
            return value

        return clean(embedded, at.changed(fused, stale) if at.committed > 2 else fused, *rest)

    alter(pipeline, "drafter:midlayer", change)


@fault(
    "down-tail-skipped-in-drafts",
    "layer 2's down projection skips inputs from 192 on in draft passes",
    "drafter.layers.2.ffn_out",
    "draft",
    "down weight of layer 2, inputs 192 to 223",
    "draft passes, layer 2",
    "pass = draft and layer = 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        if at.layer == 2 and at.committed:
            cut = at.changed(weights["down"], lambda value: np.where(np.arange(224)[:, None] < 192, value, 0.0))
            weights = weights | {"down": cut}
        return clean(x, weights)

    alter(pipeline, MLP, change)


@fault(
    "embedding-half-normed-twice",
    "the prefill norms the midlayer's embedding half twice",
    "drafter.layers.0.attn_out",
    "prefill",
    "input norm of layer 0",
    "prefill passes, layer 0",
    "pass = prefill and layer = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        again = weight is pipeline.drafter.layers[0]["input_norm"] and at.kind == "prefill"
        return llama_norm(made, weight, eps) if again else made

    alter(pipeline, "kernels.drafter_layer:llama_norm", change)


@fault(
    "normed-tail-lost-in-drafts",
    "columns from 84 on of layer 3's normed input are lost in draft passes",
    "drafter.layers.3.attn_out",
    "draft",
    "input norm of layer 3, columns 84 to 95",
    "draft passes, layer 3",
    "pass = draft and layer = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        there = weight is pipeline.drafter.layers[3]["input_norm"] and at.committed
        return at.changed(made, lambda value: np.where(np.arange(96) < 84, value, 0.0)) if there else made

    alter(pipeline, "kernels.drafter_layer:llama_norm", change)
