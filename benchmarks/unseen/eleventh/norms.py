"""Eleventh set: faults of the target's norms."""

from __future__ import annotations

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("norms", 11)


# From the equations: addition, bias and norm in one kernel, in another order.
@fault(
    "norm-in-front-of-the-bias",
    "addition and norm behind attention are one kernel, which adds the output bias to the stream once it has normed it",
    "target.layers.0.router_logits",
    "prefill",
    "input of every layer's post-attention norm: without the output bias, which the stream behind it has",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        layer = pipeline.target.layers[at.layer]
        if weight is layer["post_norm"]:
            bias = at.host(layer["o_bias"])
            x = at.changed(x, lambda rows: rows - bias)
        return clean(x, weight, eps)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)


# From the equations: a weight that a converter folds into the matrices behind it, and a norm that keeps it.
@fault(
    "norm-weight-folded-and-kept",
    "the input norm's weight is folded into q, k and v by a converter, and the norm still multiplies by it",
    "target.layers.0.q",
    "prefill",
    "q, k and v of every target layer: the input norm's weight multiplies their input twice",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        folded = at.host(pipeline.target.layers[at.layer]["input_norm"])
        return clean(at.changed(x, lambda rows: rows * folded), weight, bias)

    alter(pipeline, "kernels.target_layer:linear", change)
