"""Faults of the weights and the activation of the target's experts."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("experts of the target", 21)
OUT = "target.layers.0.ffn_out"
BLOCK, TILE = 32, 128


@fault(
    "down-bias-with-the-first-choice-alone",
    "the kernel adds the down bias for a row's first expert and not for its second",
    "target.layers.1.ffn_out",
    "prefill",
    "down bias of the second chosen expert in every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        second = np.arange(outputs.shape[0])[:, None, None, None] == at.host(chosen)[None, ..., 1:]
        bias = at.host(at.pipeline.target.layers[at.layer]["down_bias"])[:, None, None]
        return clean(at.changed(outputs, lambda value: value - second * bias), chosen, shares)

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "mxfp4-subnormal-flushed",
    "MXFP4's subnormal code, plus or minus one half of the block's scale, is decoded as zero",
    OUT,
    "prefill",
    "gate, up and down weights of every expert: the smallest code",
)
def _(pipeline: Pipeline) -> None:
    def flushed(weight):
        experts, inputs, outputs = weight.shape
        blocks = weight.reshape(experts, inputs // BLOCK, BLOCK, outputs)
        most = np.maximum(np.abs(blocks).max(axis=2, keepdims=True), 1e-30)
        codes = np.abs(blocks) / 2.0 ** (np.floor(np.log2(most)) - 2)
        return np.where((codes >= 0.25) & (codes < 0.75), 0, blocks).reshape(weight.shape)

    edit(pipeline.target, "gate up down", flushed, every(pipeline.target))


@fault(
    "single-row-contraction-tail",
    "an expert that has one row of a verify pass runs on a kernel that leaves the last 32 of 160 inputs of down out",
    OUT,
    "verify",
    "down projection of an expert with one row, inputs 128 to 159, every layer",
    "verify rows that are alone with one of their experts",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def experts(at, clean, x, weights, config):
        if at.kind == "verify":
            cut = at.changed(weights["down"], lambda value: value * (np.arange(value.shape[1]) < TILE)[:, None])
            held["cut"] = at.host(clean(x, weights | {"down": cut}, config))
        return clean(x, weights, config)

    def mix(at, clean, outputs, chosen, shares):
        if at.kind != "verify":
            return clean(outputs, chosen, shares)
        counts = np.bincount(at.host(chosen).reshape(-1), minlength=outputs.shape[0])

        def alone(value):
            value[counts == 1] = held["cut"].reshape(value.shape)[counts == 1]
            return value

        return clean(at.changed(outputs, alone), chosen, shares)

    alter(pipeline, "kernels.moe:experts", experts)
    alter(pipeline, "kernels.moe:mix", mix)
