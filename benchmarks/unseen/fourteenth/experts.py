"""Fourteenth set: faults of the experts."""

from __future__ import annotations

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from benchmarks.unseen.twelfth.blocks import parts
from parity.device.pipeline import Pipeline

fault = Part("experts", 14)


# After https://github.com/tenstorrent/tt-metal/issues/50669: indices of an expert's rows are a little too large.
@fault(
    "later-entries-one-row-on",
    "the list of an expert's rows is one too large from its second entry on, expert 0's aside",
    "target.layers.0.ffn_out",
    "verify",
    "input of experts 1 to 5 in every layer, from the second row on that each has: the row behind, or the last one",
    "verify rows that are not the first of their expert, experts from 1 on",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        if at.kind != "verify":
            return clean(outputs, chosen, shares)
        ids = at.host(chosen)[0]

        def move(rows):
            moved = rows.copy()
            for expert in range(1, len(rows)):
                later = (ids == expert).any(axis=-1).nonzero()[0][1:]
                moved[expert, 0, later] = rows[expert, 0, (later + 1).clip(max=rows.shape[2] - 1)]
            return moved

        return clean(at.changed(outputs, move), chosen, shares)

    alter(pipeline, "kernels.moe:mix", change)


# Of the class of https://github.com/vllm-project/vllm/pull/46645: scales that are to be laid out for each expert.
@fault(
    "scales-of-expert-0-for-all",
    "scales of up are loaded for expert 0, and broadcast to all others",
    "target.layers.0.ffn_out",
    "prefill",
    "block scales of up in experts 1 to 5 of every layer: those of expert 0; codes are right",
)
def _(pipeline: Pipeline) -> None:
    def misread(weight):
        codes, scales = parts(weight)
        return (codes * scales[:1, :, None]).reshape(weight.shape)

    for layer in pipeline.target.layers:
        rewritten(pipeline, layer, "up", misread)


# Of the class of https://github.com/sgl-project/sglang/pull/26884: weights that are shuffled for another kernel.
@fault(
    "down-shuffled-for-another-kernel",
    "down's columns are shuffled for a kernel of tiles of 16 in pairs, and run in one that reads them in order",
    "target.layers.0.ffn_out",
    "prefill",
    "order of the outputs of every expert's down weight: the two halves of each 32 are exchanged; biases are right",
)
def _(pipeline: Pipeline) -> None:
    def shuffled(weight):
        return weight.reshape(*weight.shape[:-1], -1, 2, 16)[..., ::-1, :].reshape(weight.shape)

    for layer in pipeline.target.layers:
        rewritten(pipeline, layer, "down", shuffled)
