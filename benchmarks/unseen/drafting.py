"""Faults of the drafter's layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.planting import Part, alter, moment, replaced
from parity.device.faults.planting import edit
from parity.device.kernels.norm import llama_norm
from parity.device.pipeline import Pipeline

fault = Part("drafter layers")
ATTEND, MLP = "kernels.drafter_layer:attend", "kernels.drafter_layer:_mlp"


@fault(
    "key-halves-exchanged",
    "the midlayer's k projection takes hidden first and embedding second",
    "drafter.layers.0.attn_out",
    "prefill",
    "k weight of layer 0",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "k", lambda value: np.concatenate([value[96:], value[:96]]), [0])


@fault(
    "head-5-reads-next-group",
    "head 5 of layer 2 reads kv group 2, its own is 1",
    "drafter.layers.2.attn_out",
    "prefill",
    "head 5 of layer 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        made = clean(q, keys, values, seen)
        if at.layer != 2:
            return made
        other = clean(q, *(at.changed(one, lambda value: value[:, :, [0, 2, 2, 3]]) for one in (keys, values)), seen)
        wrong = at.host(other)

        def taken(value):
            value[..., 160:192] = wrong[..., 160:192]
            return value

        return at.changed(made, taken)

    alter(pipeline, ATTEND, change)


@fault(
    "gate-and-up-exchanged",
    "gate and up of layer 3 are exchanged",
    "drafter.layers.3.ffn_out",
    "prefill",
    "gate and up weights of layer 3",
)
def _(pipeline: Pipeline) -> None:
    weights = pipeline.drafter.layers[3]
    weights["gate"], weights["up"] = weights["up"], weights["gate"]


@fault(
    "silu-as-quick-gelu",
    "layer 1's activation has the slope 1.702 of quick GELU",
    "drafter.layers.1.ffn_out",
    "prefill",
    "activation of layer 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights):
        if at.layer != 1:
            return clean(x, weights)
        host = {name: at.host(weights[name]) for name in ("gate", "up", "down")}

        def quick(value):
            gate, up = value @ host["gate"], value @ host["up"]
            return (up * gate / (1 + np.exp(-1.702 * gate))) @ host["down"]

        return at.changed(x, quick)

    alter(pipeline, MLP, change)


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
            value[:, first : first + 3] = value[:, first : first + 1]
            return value

        return replace(step, cos=at.changed(step.cos, alike), sin=at.changed(step.sin, alike)) if first else step

    replaced(pipeline, pipeline.drafter, "step", change)


@fault(
    "rotary-pair-6-unscaled",
    "pair 6 of the drafter's heads keeps its frequency before the context extension",
    "drafter.layers.0.attn_out",
    "prefill",
    "rotary pair 6 of the drafter",
)
def _(pipeline: Pipeline) -> None:
    angle = np.arange(pipeline.drafter.positions) * 20000.0 ** (-12 / 32)
    at, made = moment(pipeline), []
    for table, wave in zip(pipeline.drafter.tables, (np.cos, np.sin), strict=True):
        value = at.host(table)
        value[:, 6] = wave(angle)
        made.append(at.array(value, table))
    pipeline.drafter.tables = tuple(made)


@fault(
    "post-norm-of-layer-1-again",
    "layer 2's post-attention norm has layer 1's weight",
    "drafter.layers.2.ffn_out",
    "prefill",
    "post-attention norm weight of layer 2",
)
def _(pipeline: Pipeline) -> None:
    layers = pipeline.drafter.layers
    layers[2]["post_norm"] = layers[1]["post_norm"]


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
            for row in range(at.committed, at.committed + 3):
                value[:, row, first : at.positions[row]] = False
            return value

        there = at.layer == 3 and at.committed
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
    "values-of-head-tile",
    "layer 3's o projection reads heads 8 to 11 in the order 9, 8, 11, 10",
    "drafter.layers.3.attn_out",
    "prefill",
    "o weight of layer 3, heads 8 to 11",
)
def _(pipeline: Pipeline) -> None:
    order = np.arange(384).reshape(12, 32)[[*range(8), 9, 8, 11, 10]].reshape(-1)
    edit(pipeline.drafter, "o", lambda value: value[order], [3])


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
