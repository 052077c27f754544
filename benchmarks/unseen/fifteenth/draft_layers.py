"""Faults of the drafter's layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import tables
from parity.device.pipeline import Pipeline

fault = Part("drafter layers", 15)
ATTEND = "kernels.drafter_layer:attend"
DIM = 32
"""Columns of a head."""


@fault(
    "midlayer-keeps-the-normed-hidden",
    "the midlayer's residual is the normed fused hidden although norm_before_residual is false",
    "drafter.layers.0.ffn_out",
    "prefill",
    "residual of layer 0: norm_before_residual",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, embedded, fused, step, weights, caches, config, tap):
        return clean(embedded, fused, step, weights, caches, replace(config, norm_before_residual=True), tap)

    alter(pipeline, "drafter:midlayer", change)


@fault(
    "draft-rope-without-scaling",
    "the drafter turns by plain frequencies, its llama3 scaling is not read",
    "drafter.layers.0.attn_out",
    "prefill",
    "rotary tables of the drafter: llama3 scaling",
)
def _(pipeline: Pipeline) -> None:
    drafter, at = pipeline.drafter, moment(pipeline)
    made = tables(replace(drafter.rope, kind="default"), DIM, drafter.positions)
    drafter.tables = tuple(at.array(one, like) for one, like in zip(made, drafter.tables, strict=True))


@fault(
    "draft-scale-of-hidden-over-heads",
    "the drafter scales scores by the root of hidden / heads = 8, its heads have 32 columns",
    "drafter.layers.0.attn_out",
    "prefill",
    "score scale of every layer of the drafter",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, *rest):
        return clean(at.changed(q, lambda value: value * 2), *rest)

    alter(pipeline, ATTEND, change)


@fault(
    "draft-layer-with-the-targets-window",
    "layer 2 of the drafter sees the last 32 keys alone",
    "drafter.layers.2.attn_out",
    "prefill",
    "mask of layer 2 of the drafter: a window of 32",
    "rows at positions from 32 on, layer 2",
    "position >= 32 and layer = 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, *rest):
        def near(value):
            return value & (at.positions[:, None] - np.arange(value.shape[-1]) < 32)

        return clean(q, keys, values, at.changed(seen, near) if at.layer == 2 else seen, *rest)

    alter(pipeline, ATTEND, change)
