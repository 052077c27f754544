"""Seventh set: faults of router and experts."""

from __future__ import annotations

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("experts", 7)


# After https://github.com/deepseek-ai/DeepEP/issues/48
@fault(
    "one-expert-a-rank",
    "experts lie in pairs on three ranks, and a row that is sent to a rank once is run by the better of its two alone",
    "target.layers.0.ffn_out",
    "prefill",
    "the second expert of a row: its share and its output are missing from the sum",
    "rows whose two experts are a pair: 0 and 1, 2 and 3, 4 and 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        ranks = at.host(chosen) // 2

        def drop(value):
            value[ranks[..., 0] == ranks[..., 1], 1] = 0
            return value

        return clean(outputs, chosen, at.changed(shares, drop))

    alter(pipeline, "kernels.moe:mix", change)


# From the equations: a product in two halves of its inputs, each with an epilogue of its own.
@fault(
    "down-bias-in-both-halves",
    "the down projection is split into two halves of its 160 inputs, and both add its bias",
    "target.layers.0.ffn_out",
    "prefill",
    "down bias of every expert in every layer: twice what it should be",
)
def _(pipeline: Pipeline) -> None:
    for layer in pipeline.target.layers:
        rewritten(pipeline, layer, "down_bias", lambda bias: bias * 2)
