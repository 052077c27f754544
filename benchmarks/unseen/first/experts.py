"""Faults of the weights and the activation of the target's experts."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, scaled
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target experts")


def of_expert(number, change):
    """The weight of one expert changed, those of the others as they are."""

    def run(value):
        value = value.copy()
        value[number] = change(value[number])
        return value

    return run


@fault(
    "down-of-expert-4-too-large",
    "the down weight of expert 4 of layer 3 is 2 % too large",
    "target.layers.3.ffn_out",
    "prefill",
    "expert 4's down weight in layer 3",
    "rows that choose expert 4, layer 3",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "down", of_expert(4, lambda value: value * 1.02), [3])


@fault(
    "nibbles-of-expert-5",
    "neighbouring inputs of expert 5's up weight are exchanged in layer 6",
    "target.layers.6.ffn_out",
    "prefill",
    "expert 5's up weight in layer 6",
    "rows that choose expert 5, layer 6",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "up", of_expert(5, lambda value: value[np.arange(len(value)) ^ 1]), [6])


@fault(
    "scale-blocks-exchanged",
    "the scales of the first two blocks of 32 inputs of expert 1's gate are exchanged in layer 2",
    "target.layers.2.ffn_out",
    "prefill",
    "expert 1's gate scales in layer 2",
    "rows that choose expert 1, layer 2",
)
def _(pipeline: Pipeline) -> None:
    def exchanged(value):
        first, second = (2.0 ** np.floor(np.log2(np.abs(part).max(axis=0))) for part in (value[:32], value[32:64]))
        return np.concatenate([value[:32] * second / first, value[32:64] * first / second, value[64:]])

    edit(pipeline.target, "gate", of_expert(1, exchanged), [2])


@fault(
    "sigmoid-slope-rounded",
    "the sigmoid's slope is 1.7 where 1.702 is meant",
    "target.layers.0.ffn_out",
    "prefill",
    "activation of every expert",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    alter(pipeline, "kernels.moe:clamped_swiglu", lambda at, clean, gate, up, limit, alpha: clean(gate, up, limit, 1.7))


@fault(
    "last-expert-without-down-bias",
    "the last expert's down bias is lost from layer 4 on",
    "target.layers.4.ffn_out",
    "prefill",
    "expert 5's down bias in layers 4 to 7",
    "rows that choose expert 5, layers from 4 on",
    "layer >= 4",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "down_bias", of_expert(5, lambda value: 0 * value), range(4, 8))


@fault(
    "gate-bias-tail-lost",
    "gate biases behind the first tile of 128 are not added in layer 0",
    "target.layers.0.ffn_out",
    "prefill",
    "gate bias of every expert of layer 0, columns 128 to 159",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "gate_bias", scaled(slice(128, None), 0.0), [0])


@fault(
    "few-rows-lose-plus-one",
    "with fewer than 8 rows expert 0 multiplies by up where up + 1 is meant",
    "target.layers.0.ffn_out",
    "verify",
    "expert 0's activation in every layer",
    "verify rows that choose expert 0",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        few = gate.shape[1] < 8

        def lowered(value):
            value[0] -= 1
            return value

        return clean(gate, at.changed(up, lowered) if few else up, limit, alpha)

    alter(pipeline, "kernels.moe:clamped_swiglu", change)


@fault(
    "down-contraction-tail",
    "the last 32 inputs of expert 3's down weight are skipped in every layer",
    "target.layers.0.ffn_out",
    "prefill",
    "expert 3's down weight, inputs 128 to 159",
    "rows that choose expert 3",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value[128:] = 0
        return value

    edit(pipeline.target, "down", of_expert(3, cut), every(pipeline.target))
