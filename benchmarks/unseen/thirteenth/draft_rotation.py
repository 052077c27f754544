"""Thirteenth set: faults of the drafter's rotation."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import frequencies
from parity.device.pipeline import Pipeline

fault = Part("draft rotation", 13)


# After https://github.com/lucidrains/rotary-embedding-torch/issues/11: angles held by how many rows they are for.
@fault(
    "angles-held-by-the-number-of-rows",
    "cos and sin of a draft pass are held by its number of rows, and found again for rows at other positions",
    "drafter.layers.0.attn_out",
    "draft",
    "rotation of the drafter's queries and keys: by the positions of the first draft pass with as many rows; the "
    "positions that are handed over are right",
    "draft passes of as many rows as an earlier one: the first prompt's round 4, all of the second prompt",
)
def _(pipeline: Pipeline) -> None:
    model, held = pipeline.drafter, {}

    def change(at, clean, x, cos, sin):
        if at.kind != "draft":
            return clean(x, cos, sin)
        place = held.setdefault(at.committed + at.masked, np.where(at.positions < model.trash, at.positions, 0))
        return clean(x, *(at.array(at.host(table)[None, place], cos) for table in model.tables))

    alter(pipeline, "kernels.drafter_layer:rotate", change)


# Of the limits of Neuron's activation engine, whose sine is for -pi to pi.
@fault(
    "angles-held-at-pi",
    "cos and sin of the drafter's rotation are taken without bringing angles into the range of the unit that has them",
    "drafter.layers.0.attn_out",
    "prefill",
    "the drafter's RoPE: angles of more than pi count as pi, in pair 0 from position 4 on, in slower pairs later",
    "rows at positions from 4 on",
    "position >= 4",
)
def _(pipeline: Pipeline) -> None:
    model, at = pipeline.drafter, moment(pipeline)
    turns = frequencies(model.rope, model.config.attention.head_dim)
    angles = np.minimum(np.arange(model.positions)[:, None] * turns, np.pi)
    waves = (np.cos(angles) * model.rope.magnitude, np.sin(angles) * model.rope.magnitude)
    model.tables = tuple(at.engine.array(wave.astype(np.float32)) for wave in waves)
