"""Fourth set: faults of the target's experts and their shares."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("target experts", 4)
MOE = "kernels.moe"
BLOCK, EXPERTS = 32, 6
"""Inputs with one scale; experts of a layer."""


@fault(
    "scales-read-across",
    "the scales of layer 3's down weights are stored as [outputs, blocks] and read as [blocks, outputs]",
    "target.layers.3.ffn_out",
    "prefill",
    "block scales of every expert's down weight in layer 3",
)
def _(pipeline: Pipeline) -> None:
    def misread(value):
        blocks = value.reshape(EXPERTS, -1, BLOCK, value.shape[-1])
        most = np.abs(blocks).max(axis=2)
        scales = np.exp2(np.floor(np.log2(np.where(most > 0, most, 1.0))))
        across = scales.swapaxes(1, 2).reshape(scales.shape)
        return (blocks * (across / scales)[:, :, None]).reshape(value.shape)

    edit(pipeline.target, "down", misread, [3])


@fault(
    "groups-counted-without-empty-ones",
    "layer 4's grouped multiplication numbers experts without those that no verify row chose, and takes weights so",
    "target.layers.4.ffn_out",
    "verify",
    "weights of experts in layer 4",
    "verify rows that choose an expert behind one that no row of the pass chose, layer 4",
    "pass = verify and layer = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        if at.layer != 4 or at.kind != "verify":
            return clean(outputs, chosen, shares)
        used, held = np.unique(at.host(chosen)), np.arange(EXPERTS)
        held[used] = np.arange(len(used))
        return clean(at.changed(outputs, lambda value: value[held]), chosen, shares)

    alter(pipeline, f"{MOE}:mix", change)


@fault(
    "one-added-before-the-clamp",
    "one is added to up before it is clamped to 7, not afterwards",
    "target.layers.0.ffn_out",
    "prefill",
    "activation of every layer's experts, where up is above 6 or below -7",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        wide = np.minimum(at.host(gate), limit)
        lifted = np.clip(at.host(up) + 1, -limit, limit)
        return at.array((lifted * wide / (1 + np.exp(wide * -alpha))).astype(np.float32), gate)

    alter(pipeline, f"{MOE}:clamped_swiglu", change)


@fault(
    "shares-on-the-input",
    "layer 1's experts take their input times the share, and their outputs are added as they are",
    "target.layers.1.ffn_out",
    "prefill",
    "where layer 1's shares multiply",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, logits, chosen, *rest):
        if at.layer != 1:
            return clean(x, logits, chosen, *rest)
        ids = at.host(chosen)
        scores = np.take_along_axis(at.host(logits), ids, axis=-1)
        parts = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares, mixed = parts / parts.sum(axis=-1, keepdims=True), 0
        for place in range(ids.shape[-1]):
            one = slice(place, place + 1)
            weighed = at.array(at.host(x) * shares[..., one], x)
            mixed = mixed + at.host(clean(weighed, logits, at.array(ids[..., one], chosen), *rest))
        return at.array(mixed, x)

    alter(pipeline, f"{MOE}:mixture", change)


@fault(
    "lone-row-without-up-bias",
    "an expert that one row of a verify pass chose multiplies a vector, and adds no up bias, in layer 2",
    "target.layers.2.ffn_out",
    "verify",
    "up bias of experts with one row in layer 2",
    "verify rows with an expert that no other row of their pass chose, layer 2",
    "pass = verify and layer = 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, chosen, shares, weights, config):
        if at.layer == 2 and at.kind == "verify":
            lone = np.bincount(at.host(chosen).ravel(), minlength=EXPERTS) == 1
            bias = at.changed(weights["up_bias"], lambda value: np.where(lone[:, None], 0.0, value))
            weights = {**weights, "up_bias": bias}
        return clean(x, chosen, shares, weights, config)

    alter(pipeline, f"{MOE}:masked", change)
