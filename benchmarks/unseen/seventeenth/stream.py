"""Faults of the target's norms."""

from __future__ import annotations

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("norms and residual", 17)


@fault(
    "prefetched-norm-late-in-even-rounds",
    "the weight of layer 5's post-attention norm, fetched into one of two buffers, is layer 4's in even rounds",
    "target.layers.5.router_logits",
    "verify",
    "post-attention norm weight of layer 5",
    "verify passes of even rounds, layer 5",
    "pass = verify and round % 2 = 0 and layer = 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        layers = pipeline.target.layers
        late = at.kind == "verify" and at.round % 2 == 0 and weight is layers[5]["post_norm"]
        return clean(x, layers[4]["post_norm"] if late else weight, eps)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)


@fault(
    "norm-folded-into-the-router-too",
    "the post-attention norm's weight was folded into the router at loading, and the norm multiplies by it still",
    "target.layers.0.router_logits",
    "prefill",
    "router weight of every layer, times the norm's weight",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)
    for layer in pipeline.target.layers:
        norm = at.host(layer["post_norm"])[:, None]
        layer["router"] = at.array(at.host(layer["router"]) * norm, layer["router"])
