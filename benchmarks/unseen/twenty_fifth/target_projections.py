"""Faults of the target's projections around attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target projections", 25)
LINEAR = "kernels.target_layer:linear"


@fault(
    "fused-bias-split-gives-k-that-of-v",
    "the fused bias of layer 5 is cut in the order q, v, k",
    "target.layers.5.k",
    "prefill",
    "biases of k and v of layer 5",
)
def _(pipeline: Pipeline) -> None:
    held = pipeline.target.layers[5]
    held["k_bias"], held["v_bias"] = held["v_bias"], held["k_bias"]


@fault(
    "query-bias-only-in-first-row-tile",
    "the bias of q is added in the first tile of 128 rows alone",
    "target.layers.0.q",
    "prefill",
    "bias of q",
    "prefill rows from 128 on",
    "pass = prefill and row >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        made = clean(x, weight, bias)
        if at.kind != "prefill" or weight is not at.pipeline.target.layers[at.layer]["q"]:
            return made
        bare = at.host(clean(x, weight, at.changed(bias, np.zeros_like)))
        return at.changed(made, lambda value: np.concatenate([value[:, :128], bare[:, 128:]], axis=1))

    alter(pipeline, LINEAR, change)


@fault(
    "few-row-value-projection-stops-at-input-64",
    "the kernel of few rows multiplies the first 64 inputs of v alone, the last half tile is left out",
    "target.layers.0.v",
    "verify",
    "inputs 64 to 95 of v's weight",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        def cut(value):
            return np.concatenate([value[:64], 0 * value[64:]])

        short = at.kind == "verify" and weight is at.pipeline.target.layers[at.layer]["v"]
        return clean(x, at.changed(weight, cut) if short else weight, bias)

    alter(pipeline, LINEAR, change)


@fault(
    "head-outputs-member-major-before-o-projection",
    "layer 2 hands the heads' outputs to the output projection with the member of a group in front of the group",
    "target.layers.2.attn_out",
    "prefill",
    "order of heads in front of layer 2's output projection",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def major(value):
            return value.reshape(*value.shape[:2], 4, 2, 32).swapaxes(2, 3).reshape(value.shape)

        made = clean(*given)
        return at.changed(made, major) if at.layer == 2 else made

    alter(pipeline, "kernels.target_layer:attend", change)


@fault(
    "split-k-epilogue-adds-output-bias-twice",
    "the output projection of few rows is split in two over its inputs, and each part adds the bias",
    "target.layers.0.attn_out",
    "verify",
    "bias of the output projection",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        return clean(x, weight, at.changed(bias, lambda value: 2 * value) if at.kind == "verify" else bias)

    alter(pipeline, "kernels.target_layer:row_parallel", change)
