"""Faults of the target's rotary tables and of where they are read."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import yarn_bounds
from parity.device.pipeline import Pipeline

fault = Part("target rotary", 26)


@fault(
    "yarn-ramp-mask-not-inverted",
    "YaRN's ramp is taken for its complement: fast frequencies are divided by the factor, slow ones stay",
    "target.layers.0.q",
    "prefill",
    "blend of YaRN's frequencies",
)
def _(pipeline: Pipeline) -> None:
    at, target = moment(pipeline), pipeline.target
    rope, dim = target.rope, target.config.attention.head_dim
    plain = rope.theta ** (-np.arange(0, dim, 2) / dim)
    low, high = yarn_bounds(rope, len(plain))
    ramp = np.clip((np.arange(len(plain)) - low) / (high - low), 0, 1)
    angles = np.arange(target.positions)[:, None] * (plain * ramp + plain / rope.factor * (1 - ramp))
    target.tables = tuple(
        at.array((wave(angles) * rope.magnitude).astype(np.float32), held)
        for wave, held in zip((np.cos, np.sin), target.tables, strict=True)
    )


@fault(
    "grown-rotary-table-without-magnitude",
    "the rotary table is made for 128 positions and grows later, and what it grows by lacks YaRN's magnitude",
    "target.layers.0.q",
    "prefill",
    "magnitude of cos and sin from position 128 on",
    "positions from 128 on",
    "position >= 128",
)
def _(pipeline: Pipeline) -> None:
    at, target = moment(pipeline), pipeline.target

    def grown(value):
        value[128:] /= target.rope.magnitude
        return value

    target.tables = tuple(at.changed(held, grown) for held in target.tables)


@fault(
    "angle-late-behind-wholly-rejected-round",
    "behind a round that accepted no draft the counter of positions that rotate was not moved on by the bonus token",
    "target.layers.0.q",
    "verify",
    "position that rotates queries and keys, one too small",
    "verify passes behind a round that accepted nothing",
    "pass = verify and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        if at.kind == "verify" and at.accepted == 0:
            tables = (at.host(one)[at.positions - 1][None] for one in pipeline.target.tables)
            cos, sin = (at.array(value, held) for value, held in zip(tables, (cos, sin), strict=True))
        return clean(x, cos, sin)

    alter(pipeline, "kernels.target_layer:rotate", change)
