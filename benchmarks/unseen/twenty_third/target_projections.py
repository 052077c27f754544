"""Faults of the target's projections, norms and rotary embedding."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.kernels.rope import yarn_bounds
from parity.device.pipeline import Pipeline

fault = Part("target projections, norms and rotary embedding", 23)
NORM, ROTATE = "kernels.target_layer:gpt_oss_norm", "kernels.target_layer:rotate"
QUERY_HEADS, KEY_HEADS, HALF = 8, 4, 16
"""Of the tiny target; HALF of a head's elements."""


def of_layer(at, name):
    """A weight of the layer that runs."""
    return at.pipeline.target.layers[at.layer][name]


@fault(
    "v-bias-in-kernel-and-epilogue",
    "the bias of the value projection is added twice, in the fused kernel and once more behind it",
    "target.layers.0.v",
    "prefill",
    "bias of the value projection in every layer",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "v_bias", lambda value: 2 * value, every(pipeline.target))


@fault(
    "k-weight-permuted-by-converter",
    "the converter permutes the key weight's outputs for a rotation of neighbours, the kernel rotates halves",
    "target.layers.0.k",
    "prefill",
    "order of the key weight's outputs within each head",
)
def _(pipeline: Pipeline) -> None:
    def permuted(value):
        return value.reshape(-1, KEY_HEADS, 2, HALF).swapaxes(2, 3).reshape(value.shape)

    edit(pipeline.target, "k", permuted, every(pipeline.target))


@fault(
    "yarn-ramp-upside-down",
    "YaRN's ramp is taken the other way round: high frequencies are divided by the factor, low ones stay",
    "target.layers.0.q",
    "prefill",
    "YaRN's ramp between scaled and unscaled frequencies",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target
    rope, half = target.rope, target.config.attention.head_dim // 2
    plain = rope.theta ** (-np.arange(half) / half)
    low, high = yarn_bounds(rope, half)
    ramp = 1 - np.clip((np.arange(half) - low) / (high - low), 0, 1)
    angles = np.arange(target.positions)[:, None] * (plain * (1 - ramp) + plain / rope.factor * ramp)
    waves = ((wave(angles) * rope.magnitude).astype(np.float32) for wave in (np.cos, np.sin))
    target.tables = tuple(pipeline.engine.array(wave) for wave in waves)


@fault(
    "norm-mean-over-padded-width",
    "the norm before the experts divides the sum of squares by the padded width of 128, not by 96",
    "target.layers.0.router_logits",
    "prefill",
    "mean of squares in the norm before the experts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if weight is not of_layer(at, "post_norm"):
            return clean(x, weight, eps)
        wide = at.host(x)
        root = np.sqrt(np.sum(wide**2, axis=-1, keepdims=True) / 128 + eps)
        return at.array(wide / root * at.host(weight), x)

    alter(pipeline, NORM, change)


@fault(
    "verify-rows-normed-together",
    "in verify passes the norm before attention takes one mean of squares over all rows of the pass",
    "target.layers.0.attn_in",
    "verify",
    "mean of squares in the norm before attention",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if at.kind != "verify" or weight is not of_layer(at, "input_norm"):
            return clean(x, weight, eps)
        wide = at.host(x)
        live = wide[0, at.positions != pipeline.target.trash]
        return at.array(wide / np.sqrt(np.mean(live**2) + eps) * at.host(weight), x)

    alter(pipeline, NORM, change)


@fault(
    "verify-queries-turned-as-first-row",
    "cos and sin of the queries of a verify pass are loaded once, for its first row",
    "target.layers.0.q",
    "verify",
    "rotation of the queries",
    "verify rows behind the first",
    "pass = verify and row > 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        if at.kind == "verify" and x.shape[2] == QUERY_HEADS:
            cos, sin = (at.changed(one, lambda value: np.repeat(value[:, :1], value.shape[1], 1)) for one in (cos, sin))
        return clean(x, cos, sin)

    alter(pipeline, ROTATE, change)


@fault(
    "prefill-keys-turned-from-tile-start",
    "keys of a prefill are rotated by their place within their tile of 64 rows",
    "target.layers.0.k",
    "prefill",
    "positions of the keys' rotation",
    "prefill rows from position 64 on",
    "pass = prefill and position >= 64",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        if at.kind == "prefill" and x.shape[2] == KEY_HEADS:
            within = at.positions % 64
            cos, sin = (at.array(at.host(table)[within][None], cos) for table in pipeline.target.tables)
        return clean(x, cos, sin)

    alter(pipeline, ROTATE, change)
