"""Tenth set: faults of the router and of its choice."""

from __future__ import annotations

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("routing", 10)


# Of another family's setting: a bias that corrects the choice, beside scores that have none.
@fault(
    "bias-corrects-the-choice",
    "the router's bias, which the logits hold, is added for the choice again, as another family corrects its choice",
    "target.layers.0.experts",
    "prefill",
    "the choice of experts in every layer: the router's bias counts twice in it, in the shares once",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        bias = at.host(pipeline.target.layers[at.layer]["router_bias"])
        return clean(at.changed(logits, lambda rows: rows + bias), k)

    alter(pipeline, "kernels.moe:top_k", change)


# From the equations: a partial tile of rows, and the last tile of what is summed.
@fault(
    "partial-tile-ends-early",
    "the router takes 16 rows of a prompt at a time, and the rest of them without the last 32 inputs",
    "target.layers.0.router_logits",
    "prefill",
    "router logits of every layer: inputs 64 to 95 add nothing",
    "prefill rows behind the last whole tile of 16 rows, the last two of each prompt",
)
def _(pipeline: Pipeline) -> None:
    model = pipeline.target

    def change(at, clean, x, weight, bias):
        if at.kind != "prefill" or weight is not model.layers[at.layer]["router"]:
            return clean(x, weight, bias)
        count = int((at.positions < model.trash).sum())

        def cut(rows):
            rows[:, count // 16 * 16 : count, 64:] = 0
            return rows

        return clean(at.changed(x, cut), weight, bias)

    alter(pipeline, "kernels.moe:linear", change)
