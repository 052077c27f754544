"""Faults of the target's queries, keys and values and of their rotation."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.kernels.rope import yarn_bounds
from parity.device.pipeline import Pipeline

fault = Part("projections and rotation", 27)
ROTATE = "kernels.target_layer:rotate"
KV_HEADS = 4


@fault(
    "value-heads-of-fused-qkv-rolled",
    "layer 2's value heads are cut out of the fused matrix one head late, the last one wraps",
    "target.layers.2.v",
    "prefill",
    "value weight and bias of layer 2, heads rolled by one",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "v v_bias", lambda value: np.roll(value, -32, axis=-1), [2])


@fault(
    "value-bias-loaded-from-key-bias",
    "the value projection has the key projection's bias",
    "target.layers.0.v",
    "prefill",
    "value bias of every layer",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)
    for number in every(pipeline.target):
        keys = at.host(pipeline.target.layers[number]["k_bias"])
        edit(pipeline.target, "v_bias", lambda value, keys=keys: keys, [number])


@fault(
    "key-bias-added-behind-the-rotation",
    "the key's bias is added to the rotated key, not to the projection",
    "target.layers.0.k",
    "prefill",
    "order of key bias and rotation",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        if x.shape[2] != KV_HEADS:
            return clean(x, cos, sin)
        bias = at.host(pipeline.target.layers[at.layer]["k_bias"]).reshape(KV_HEADS, -1)
        return at.array(at.host(clean(at.host(x) - bias, cos, sin)) + bias, x)

    alter(pipeline, ROTATE, change)


@fault(
    "yarn-ramp-counted-in-dimensions",
    "the bounds of YaRN's ramp are numbers of dimensions, compared with numbers of frequencies",
    "target.layers.0.q",
    "prefill",
    "YaRN's ramp, twice as far",
)
def _(pipeline: Pipeline) -> None:
    target, half = pipeline.target, 16
    rope = target.rope
    plain = rope.theta ** (-np.arange(half) / half)
    low, high = (2 * bound for bound in yarn_bounds(rope, half))
    ramp = np.clip((np.arange(half) - low) / (high - low), 0, 1)
    angles = np.arange(target.positions)[:, None] * (plain * (1 - ramp) + plain / rope.factor * ramp)
    waves = (np.cos(angles), np.sin(angles))
    target.tables = tuple(pipeline.engine.array((wave * rope.magnitude).astype(np.float32)) for wave in waves)


@fault(
    "rotary-table-behind-128-one-late",
    "the table's second tile of 128 positions begins one position low",
    "target.layers.0.q",
    "prefill",
    "cos and sin of positions from 128 on",
    "rows at positions from 128 on",
    "position >= 128",
)
def _(pipeline: Pipeline) -> None:
    at, target = moment(pipeline), pipeline.target

    def late(value):
        return np.concatenate([value[:128], value[127:-1]])

    target.tables = tuple(at.changed(table, late) for table in target.tables)


@fault(
    "keys-turned-one-ahead-behind-full-rejection",
    "behind a round that accepted no draft the verify pass rotates its keys by the position plus one",
    "target.layers.0.k",
    "verify",
    "rotation of the keys of a verify pass",
    "verify passes behind a round that accepted no draft",
    "pass = verify and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        if x.shape[2] != KV_HEADS or at.kind != "verify" or at.accepted != 0:
            return clean(x, cos, sin)
        ahead = (np.take(table, at.positions[None] + 1, axis=0) for table in pipeline.target.tables)
        return clean(x, *ahead)

    alter(pipeline, ROTATE, change)
