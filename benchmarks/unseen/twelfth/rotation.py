"""Twelfth set: faults of the target's rotation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.kernels.rope import tables, yarn_bounds
from parity.device.pipeline import Pipeline

fault = Part("rotation", 12)


# Of https://github.com/pytorch/torchtitan/pull/3787: two conventions for which beta is the fast one.
@fault(
    "betas-exchanged",
    "YaRN's ramp begins where beta_slow says and ends where beta_fast says",
    "target.layers.0.q",
    "prefill",
    "the target's RoPE: YaRN's ramp falls where it should rise; pairs 0 and 1 turn too slowly, pairs from 2 on too "
    "fast, from 4 on at their plain pace",
)
def _(pipeline: Pipeline) -> None:
    model, rope, at = pipeline.target, pipeline.target.rope, moment(pipeline)
    turned = replace(rope, fast=rope.slow, slow=rope.fast)
    waves = tables(turned, model.config.attention.head_dim, model.positions)
    model.tables = tuple(at.engine.array(wave) for wave in waves)


# Of https://github.com/microsoft/onnxruntime-genai/pull/2076: frequencies and their inverses, under one name.
@fault(
    "interpolated-part-inverted-again",
    "YaRN's interpolated part takes frequencies for wavelengths: 1 over 8 times the frequency, not an eighth of it",
    "target.layers.0.q",
    "prefill",
    "the target's RoPE: the interpolated part of YaRN's blend turns by the inverse of the frequency over 8; pair 0 "
    "turns as it should, pairs from 4 on by that alone",
)
def _(pipeline: Pipeline) -> None:
    model, rope, at = pipeline.target, pipeline.target.rope, moment(pipeline)
    dim = model.config.attention.head_dim
    plain = rope.theta ** (-np.arange(0, dim, 2) / dim)
    low, high = yarn_bounds(rope, len(plain))
    ramp = np.clip((np.arange(len(plain)) - low) / (high - low), 0, 1)
    angles = np.arange(model.positions)[:, None] * (plain * (1 - ramp) + ramp / (rope.factor * plain))
    waves = (np.cos(angles) * rope.magnitude, np.sin(angles) * rope.magnitude)
    model.tables = tuple(at.engine.array(wave.astype(np.float32)) for wave in waves)


# From the equations: a last tile that is moved back to be whole, over rows that are turned in place.
@fault(
    "last-tile-turns-rows-again",
    "a prompt's rows are turned in place in tiles of 32, and the last tile is moved back to end with the last row",
    "target.layers.0.q",
    "prefill",
    "rotation of queries and keys in every target layer: twice by their position, the magnitude squared",
    "prefill rows among the last 32 of a prompt, in front of the last whole tile's end: 98 to 127 and 66 to 95",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        made = clean(x, cos, sin)
        count = int((at.positions < pipeline.target.trash).sum())
        if at.kind != "prefill" or count % 32 == 0:
            return made
        again, rows = at.host(clean(made, cos, sin)), slice(count - 32, count // 32 * 32)

        def turn(value):
            value[:, rows] = again[:, rows]
            return value

        return at.changed(made, turn)

    alter(pipeline, "kernels.target_layer:rotate", change)
