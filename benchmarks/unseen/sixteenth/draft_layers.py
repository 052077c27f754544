"""Faults of the drafter's layers."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import tables
from parity.device.pipeline import Pipeline

fault = Part("drafter layers", 16)
DIM = 32
"""Of a head."""


@fault(
    "residual-behind-hidden-norm",
    "the midlayer's residual is the normed hidden, as where norm_before_residual is set",
    "drafter.layers.0.ffn_out",
    "prefill",
    "residual of layer 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, embedded, fused, step, weights, caches, config, tap):
        return clean(embedded, fused, step, weights, caches, replace(config, norm_before_residual=True), tap)

    alter(pipeline, "drafter:midlayer", change)


@fault(
    "llama3-scaling-dropped",
    "the drafter rotates by its plain frequencies, rope_scaling was lost in the conversion",
    "drafter.layers.0.attn_out",
    "prefill",
    "rotary frequencies of the drafter",
)
def _(pipeline: Pipeline) -> None:
    model, at = pipeline.drafter, moment(pipeline)
    made = tables(replace(model.rope, kind="default"), DIM, model.positions)
    model.tables = tuple(at.array(value, held) for value, held in zip(made, model.tables, strict=True))


@fault(
    "head-tiles-cross-groups",
    "draft passes take heads two at a time and the kv group of the first, so heads 3 and 9 read the group before",
    "drafter.layers.0.attn_out",
    "draft",
    "kv group of heads 3 and 9 in every layer",
    "draft passes",
    "pass = draft",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        made = clean(q, keys, values, seen)
        if not at.committed:
            return made
        before = (at.changed(one, lambda value: value[:, :, [0, 0, 1, 2]]) for one in (keys, values))
        wrong = at.host(clean(q, *before, seen))

        def crossed(value):
            for head in (3, 9):
                mine = slice(head * DIM, (head + 1) * DIM)
                value[..., mine] = wrong[..., mine]
            return value

        return at.changed(made, crossed)

    alter(pipeline, "kernels.drafter_layer:attend", change)
