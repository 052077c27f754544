"""The target's experts and the residual stream behind them."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import moment, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("experts of the target", 28)


@fault(
    "gate-and-up-of-one-expert-exchanged",
    "expert 4 of layer 2 has gate and up projection exchanged, weights and biases",
    "target.layers.2.ffn_out",
    "prefill",
    "gate and up projection of expert 4 in layer 2",
)
def _(pipeline: Pipeline) -> None:
    weights, at = pipeline.target.layers[2], moment(pipeline)
    for gate, up in (("gate", "up"), ("gate_bias", "up_bias")):
        one, other = at.host(weights[gate]), at.host(weights[up])
        one[4], other[4] = other[4].copy(), one[4].copy()
        weights[gate], weights[up] = at.array(one, weights[gate]), at.array(other, weights[up])


@fault(
    "down-bias-of-the-next-expert",
    "the experts' output biases are read from one expert further on, the last from the first",
    "target.layers.0.ffn_out",
    "prefill",
    "the output bias of each expert, another's",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "down_bias", lambda bias: np.roll(bias, -1, axis=0), every(pipeline.target))


@fault(
    "down-scale-exponent-one-high",
    "the scale of expert 2's fourth block of 32 inputs is one exponent too high in layer 1's down projection",
    "target.layers.1.ffn_out",
    "prefill",
    "the down projection of expert 2 in layer 1, inputs 96 to 127, twice as large",
)
def _(pipeline: Pipeline) -> None:
    def change(weight: np.ndarray) -> np.ndarray:
        weight[2, 96:128] *= 2
        return weight

    rewritten(pipeline, pipeline.target.layers[1], "down", change)


@fault(
    "attention-added-to-the-residual-twice",
    "layer 6 adds its attention to the residual stream once more behind the experts",
    "target.layers.6.out",
    "prefill",
    "the residual stream that leaves layer 6, with the attention's output twice",
)
def _(pipeline: Pipeline) -> None:
    def change(at: Any, clean: Any, held: int, x: Any, step: Any, tap: Any) -> Any:
        if held != 6:
            return clean(held, x, step, tap)
        shown: dict[str, Any] = {}

        def watched(part: str, value: Any) -> Any:
            shown[part] = tap(part, value + shown["attn_out"] if part == "out" else value)
            return shown[part]

        return clean(held, x, step, watched)

    replaced(pipeline, pipeline.target, "layer", change)
