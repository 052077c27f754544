"""Faults of the target's experts and of their sum."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target experts", 18)
FFN, ACTIVE = "target.layers.0.ffn_out", "kernels.moe:clamped_swiglu"
EXPERTS, HEAVY = 6, 40


@fault(
    "gate-times-the-slope-too",
    "the gate is multiplied by 1.702 in front of its sigmoid and stays so, as where silu takes a scaled argument",
    FFN,
    "prefill",
    "activation of every expert, gate 1.702 times too large",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        return at.changed(clean(gate, up, limit, alpha), lambda value: value * alpha)

    alter(pipeline, ACTIVE, change)


@fault(
    "limit-on-the-product",
    "the limit of 7 is put on the activation's product, gate and up are not clamped before",
    FFN,
    "prefill",
    "activation of every expert, clamp of gate and up",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        lifted = at.host(up) + 1

        def product(value):
            sigmoid = 1 / (1 + np.exp(np.minimum(-alpha * value, 80)))
            return np.clip(lifted * value * sigmoid, -limit, limit)

        return at.changed(gate, product)

    alter(pipeline, ACTIVE, change)


@fault(
    "shares-weigh-twice",
    "shares multiply the experts' outputs where these are written and again where they are summed",
    FFN,
    "prefill",
    "shares of every layer, squared",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        return clean(outputs, chosen, at.changed(shares, np.square))

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "down-bias-by-place-of-choice",
    "the down bias is found by an expert's place among a row's choices, 0 or 1, not by its number",
    FFN,
    "prefill",
    "down biases of every layer, those of experts 0 and 1 for the first and the second choice",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        bias, ids = at.host(pipeline.target.layers[at.layer]["down_bias"]), at.host(chosen)
        wrong = (at.host(shares)[..., None] * (bias[: ids.shape[-1]] - bias[ids])).sum(axis=-2)
        return at.changed(clean(outputs, chosen, shares), lambda value: value + wrong)

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "rebalanced-before-the-map",
    "between the prompts experts 2 and 5 of layer 4 change places for balance, and the map to them does not",
    "target.layers.4.ffn_out",
    "prefill",
    "weights of experts 2 and 5 of layer 4, exchanged",
    "from the second prompt on, rows that choose expert 2 or 5, layer 4",
    "prompt > 1 and layer = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weights, config):
        made = clean(x, weights, config)
        if at.prompt < 2 or at.layer != 4:
            return made
        return at.changed(made, lambda value: value[[0, 1, 5, 3, 4, 2]])

    alter(pipeline, "kernels.moe:experts", change)


@fault(
    "heavy-experts-in-eight-bits",
    "an expert that more than 40 rows of a prefill chose takes them through a kernel of fp8 (e4m3)",
    FFN,
    "prefill",
    "input of experts with more than 40 rows in every layer, rounded to fp8 (e4m3)",
    "prefill rows that choose an expert which more than 40 rows of the pass choose",
)
def _(pipeline: Pipeline) -> None:
    heavy = []

    def count(at, clean, x, chosen, *rest):
        ids = at.host(chosen)[:, at.positions < pipeline.target.trash]
        loads = [(ids == one).sum() for one in range(EXPERTS)]
        heavy[:] = [one for one in range(EXPERTS) if at.kind == "prefill" and loads[one] > HEAVY]
        return clean(x, chosen, *rest)

    def change(at, clean, x, *rest):
        made = clean(x, *rest)
        if not heavy:
            return made
        rough = at.host(clean(at.changed(x, lambda value: value.astype(float8_e4m3fn).astype(np.float32)), *rest))

        def mixed(value):
            value[heavy] = rough[heavy]
            return value

        return at.changed(made, mixed)

    alter(pipeline, "kernels.moe:masked", count)
    alter(pipeline, "kernels.moe:experts", change)
