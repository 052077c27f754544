"""Faults of the target's rotation and of its heads' layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, moment, replaced
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import tables
from parity.device.pipeline import Pipeline

fault = Part("target attention", 15)
DIM = 32
"""Columns of a head."""


@fault(
    "yarn-ramp-to-whole-dimensions",
    "the ends of YaRN's ramp are rounded to whole dimensions although the config says truncate: false",
    "target.layers.0.q",
    "prefill",
    "rotary tables of the target: truncate of YaRN",
)
def _(pipeline: Pipeline) -> None:
    target, at = pipeline.target, moment(pipeline)
    made = tables(replace(target.rope, truncate=True), DIM, target.positions)
    target.tables = tuple(at.array(one, like) for one, like in zip(made, target.tables, strict=True))


@fault(
    "kv-groups-tiled-over-heads",
    "head n reads kv group n % 4 where n // 2 is meant",
    "target.layers.0.attn_out",
    "prefill",
    "kv groups of every layer: tiled, not repeated",
)
def _(pipeline: Pipeline) -> None:
    order = [4 * each + group for group in range(4) for each in range(2)]

    def change(at, clean, q, keys, values, seen, sinks):
        q = at.changed(q, lambda value: value[:, :, order])
        made = clean(q, keys, values, seen, at.changed(sinks, lambda value: value[order]))

        def back(value):
            by_head = value.reshape(*value.shape[:2], 8, DIM)[:, :, np.argsort(order)]
            return by_head.reshape(value.shape)

        return at.changed(made, back)

    alter(pipeline, "kernels.target_layer:attend", change)


@fault(
    "bonus-token-not-counted-in-positions",
    "behind a round that accepted every draft verify rows are turned one position too early",
    "target.layers.0.q",
    "verify",
    "rotation of q and k of the target: positions one too small",
    "verify passes behind a round that accepted all 4 drafts",
    "pass = verify and accepted = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        step = clean(rows)
        if at.kind != "verify" or at.accepted != 4:
            return step
        early = np.maximum(rows.positions - 1, 0)
        cos, sin = (at.array(at.host(one)[early], one) for one in pipeline.target.tables)
        return replace(step, cos=cos, sin=sin)

    replaced(pipeline, pipeline.target, "step", change)
