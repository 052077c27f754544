"""Faults of the target's router and experts."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.planting import Part, alter, scaled
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
    "router-bias-of-neighbour",
    "expert 2's router bias is that of expert 3 in layer 4",
    "target.layers.4.router_logits",
    "prefill",
    "router bias of expert 2 of layer 4",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "router_bias", of_expert(2, lambda value: np.float32(0)), [4])
    weights = pipeline.target.layers[4]
    bias = pipeline.engine.host(weights["router_bias"])
    bias[2] = bias[3]
    weights["router_bias"] = pipeline.engine.array(bias, weights["router_bias"].dtype)


@fault(
    "router-in-eighths",
    "the router weight of layer 7 is kept in fp8 (e4m3)",
    "target.layers.7.router_logits",
    "prefill",
    "router weight of layer 7",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "router", lambda value: value.astype(float8_e4m3fn).astype(np.float32), [7])


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
    "shares-follow-sorted-ids",
    "experts are sorted by id and their shares are not, in layer 5",
    "target.layers.5.ffn_out",
    "prefill",
    "shares of layer 5",
    "rows whose first choice has the larger id, layer 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        if at.layer == 5:
            wrong = at.host(chosen[..., :1] > chosen[..., 1:])
            shares = at.changed(shares, lambda value: np.where(wrong, value[..., ::-1], value))
        return clean(outputs, chosen, shares)

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "expert-capacity-of-32",
    "an expert of layer 1 takes 32 rows of a prefill at most, later ones go without",
    "target.layers.1.ffn_out",
    "prefill",
    "rows behind the 32nd of each expert of layer 1",
    "prefill rows whose expert has had 32 rows before, layer 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        def capped(value):
            ids = at.host(chosen)
            for expert in range(6):
                mine = ids == expert
                before = np.cumsum(mine.any(axis=-1), axis=1)[..., None]
                value = np.where(mine & (before > 32), 0.0, value)
            return value

        there = at.layer == 1 and at.kind == "prefill"
        return clean(outputs, chosen, at.changed(shares, capped) if there else shares)

    alter(pipeline, "kernels.moe:mix", change)


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
    "row-3-takes-row-2-experts",
    "row 3 of a verify pass is sent to row 2's experts in layer 6",
    "target.layers.6.experts",
    "verify",
    "chosen experts of layer 6",
    "row 3 of verify passes, layer 6",
    "pass = verify and row = 3 and layer = 6",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        made = clean(*given)

        def stale(value):
            value[:, 3] = value[:, 2]
            return value

        return at.changed(made, stale) if at.layer == 6 and at.kind == "verify" else made

    alter(pipeline, "kernels.moe:top_k", change)


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
    "experts-of-one-share",
    "both experts of a row weigh one half in layer 7 in the first round",
    "target.layers.7.ffn_out",
    "verify",
    "shares of layer 7",
    "the verify pass of round 1, layer 7",
    "pass = verify and round = 1 and layer = 7",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        there = at.layer == 7 and at.kind == "verify" and at.round == 1
        return clean(outputs, chosen, at.changed(shares, lambda value: 0 * value + 0.5) if there else shares)

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "weak-share-flushed",
    "the second expert of a row goes without where its share is below 0.2",
    "target.layers.0.ffn_out",
    "prefill",
    "second experts of every layer",
    "rows whose second share is below 0.2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        return clean(outputs, chosen, at.changed(shares, lambda value: np.where(value < 0.2, 0.0, value)))

    alter(pipeline, "kernels.moe:mix", change)


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
