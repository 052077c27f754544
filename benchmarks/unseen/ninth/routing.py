"""Ninth set: faults of the router's choice."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("routing", 9)


# After https://github.com/vcruz305/vllm-exl3/issues/2
@fault(
    "choices-read-flat",
    "the choices of all rows are handed on as one list, and row r takes its r-th entry: one expert a row",
    "target.layers.0.ffn_out",
    "prefill",
    "experts and shares of a row in every layer: the one choice of row r // 2 that is its first or second by r % 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        def flat(rows):
            return rows.reshape(len(rows), -1)[:, : rows.shape[1], None]

        return clean(outputs, at.changed(chosen, flat), at.changed(shares, flat))

    alter(pipeline, "kernels.moe:mix", change)


# From the equations: another family's scores, a sigmoid of each logit over the sum of those chosen.
@fault(
    "shares-of-sigmoids",
    "experts are weighed by the sigmoids of their logits over the sum of the chosen ones, as another family has it",
    "target.layers.0.ffn_out",
    "prefill",
    "shares of every layer's experts: sigmoids over their sum, no softmax",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        def weigh(logits):
            scores = 1 / (1 + np.exp(-logits))
            return scores / scores.sum(axis=-1, keepdims=True)

        return at.changed(x, weigh)

    alter(pipeline, "kernels.moe:softmax", change)
