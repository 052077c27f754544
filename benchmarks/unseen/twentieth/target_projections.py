"""Faults of the target's projections, and of what rotates queries and keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.kernels.rope import yarn_bounds
from parity.device.pipeline import Pipeline

fault = Part("target projections and rotation", 20)
TILE = 48
"""Inputs of a contraction's tile."""


@fault(
    "key-and-value-bias-exchanged",
    "the biases of keys and of values are exchanged in layer 5",
    "target.layers.5.k",
    "prefill",
    "k and v bias of layer 5",
)
def _(pipeline: Pipeline) -> None:
    held = pipeline.target.layers[5]
    held["k_bias"], held["v_bias"] = held["v_bias"], held["k_bias"]


@fault(
    "output-contraction-remainder",
    "layer 6's output projection runs over whole tiles of 48 inputs, and leaves out the 16 of 256 that remain",
    "target.layers.6.attn_out",
    "prefill",
    "o weight of layer 6, inputs 240 to 255: the upper half of head 7",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value = value.copy()
        value[len(value) // TILE * TILE :] = 0
        return value

    edit(pipeline.target, "o", cut, [6])


@fault(
    "ramp-the-other-way",
    "YaRN's ramp is taken the other way: high frequencies are divided by the factor, low ones stay",
    "target.layers.0.q",
    "prefill",
    "frequencies of the target's RoPE",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target
    rope, dim = target.rope, target.config.attention.head_dim
    plain = rope.theta ** (-np.arange(0, dim, 2) / dim)
    low, high = yarn_bounds(rope, len(plain))
    ramp = np.clip((np.arange(len(plain)) - low) / (high - low or 0.001), 0, 1)
    angles = np.arange(target.positions)[:, None] * (plain * ramp + plain / rope.factor * (1 - ramp))
    cos, sin = ((wave(angles) * rope.magnitude).astype(np.float32) for wave in (np.cos, np.sin))
    target.tables = target.engine.array(cos), target.engine.array(sin)


@fault(
    "keys-rotated-in-place",
    "keys are rotated in place: the second half turns with the first half's new values",
    "target.layers.0.k",
    "prefill",
    "second half of every key's elements",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        if x.shape[2] != pipeline.target.config.attention.kv_heads:
            return clean(x, cos, sin)
        first, second = np.split(at.host(x), 2, axis=-1)
        cos, sin = at.host(cos)[:, :, None], at.host(sin)[:, :, None]
        turned = first * cos - second * sin
        return at.array(np.concatenate([turned, second * cos + turned * sin], axis=-1), x)

    alter(pipeline, "kernels.target_layer:rotate", change)


@fault(
    "fifth-verify-row-turned-as-first",
    "verify rows behind a tile of four are rotated by the cos and sin of the row four before",
    "target.layers.0.q",
    "verify",
    "position by which queries and keys are rotated: 4 too small",
    "verify rows from 4 on",
    "pass = verify and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        step = clean(*given)
        if at.kind != "verify":
            return step

        def wrapped(table):
            return table[:, np.arange(table.shape[1]) % 4]

        return replace(step, cos=at.changed(step.cos, wrapped), sin=at.changed(step.sin, wrapped))

    replaced(pipeline, pipeline.target, "make_step", change)
