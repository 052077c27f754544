"""Faults of the target's projections to queries, keys and values, and of their rotation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import instead
from parity.device.kernels.rope import yarn_bounds
from parity.device.pipeline import Pipeline

fault = Part("projections and rotary embedding of the target", 21)
HEAD, TILE = 32, 128


@fault(
    "key-bias-behind-rotation",
    "the fused kernel rotates keys first and adds their bias afterwards",
    "target.layers.0.k",
    "prefill",
    "bias of the key projection in every layer: added behind the rotation",
)
def _(pipeline: Pipeline) -> None:
    kv_heads = pipeline.target.config.attention.kv_heads

    def change(at, clean, x, cos, sin):
        if x.shape[2] != kv_heads:
            return clean(x, cos, sin)
        bias = at.pipeline.target.layers[at.layer]["k_bias"].reshape(1, 1, kv_heads, HEAD)
        return clean(x - bias, cos, sin) + bias

    alter(pipeline, "kernels.target_layer:rotate", change)


@fault(
    "value-bias-at-the-keys-offset",
    "the fused bias of queries, keys and values is cut at one offset twice: values take the keys' bias",
    "target.layers.0.v",
    "prefill",
    "bias of the value projection in every layer",
)
def _(pipeline: Pipeline) -> None:
    for weights in pipeline.target.layers:
        weights["v_bias"] = weights["k_bias"]


@fault(
    "yarn-ramp-over-dimensions",
    "YaRN's ramp is taken at the dimensions 0, 2, 4 where its bounds count pairs",
    "target.layers.0.q",
    "prefill",
    "frequencies of the target's rotary embedding: the ramp between kept and divided ones",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target
    rope, dimensions = target.rope, np.arange(0, HEAD, 2)
    plain = rope.theta ** (-dimensions / HEAD)
    low, high = yarn_bounds(rope, HEAD // 2)
    ramp = np.clip((dimensions - low) / (high - low), 0, 1)
    angles = np.arange(target.positions)[:, None] * (plain * (1 - ramp) + plain / rope.factor * ramp)
    waves = (wave(angles) * rope.magnitude for wave in (np.cos, np.sin))
    target.tables = tuple(target.engine.array(one.astype(np.float32)) for one in waves)


@fault(
    "rotation-runs-ahead-behind-rejection",
    "behind a round without an accepted draft the verify rows are rotated one position too far, their masks right",
    "target.layers.0.q",
    "verify",
    "positions that the target's queries and keys are rotated by",
    "verify passes behind a round that accepted no draft",
    "pass = verify and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)

    def make(clean):
        def step(rows):
            made = clean(rows)
            if at.kind != "verify" or at.accepted != 0:
                return made
            ahead = clean(replace(rows, positions=rows.positions + 1))
            return replace(made, cos=ahead.cos, sin=ahead.sin)

        return step

    instead(pipeline.target, "step", make)


@fault(
    "query-bias-pointer-advances",
    "the pointer to the query bias moves on with the tile of rows: the second tile's rows take the next head's bias",
    "target.layers.0.q",
    "prefill",
    "bias of the query projection in every layer",
    "rows of a prefill from 128 on",
    "pass = prefill and row >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        made = clean(x, weight, bias)
        mine = weight is at.pipeline.target.layers[at.layer]["q"]
        if at.kind != "prefill" or not mine or x.shape[1] <= TILE:
            return made
        moved = clean(x, weight, at.changed(bias, lambda value: np.roll(value, -HEAD)))
        return np.concatenate([made[:, :TILE], moved[:, TILE:]], axis=1)

    alter(pipeline, "kernels.target_layer:linear", change)
