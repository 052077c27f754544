"""Faults of the target's residual stream."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("norms and residual")
NORM = "kernels.target_layer:gpt_oss_norm"


@fault(
    "stream-before-attention-normed",
    "layer 3's router and experts see the stream before attention in verify passes",
    "target.layers.3.router_logits",
    "verify",
    "input of layer 3's post-attention norm",
    "verify passes, layer 3",
    "pass = verify and layer = 3",
)
def _(pipeline: Pipeline) -> None:
    entered = {}

    def change(at, clean, x, weight, eps):
        mine = pipeline.target.layers[3]
        if weight is mine["input_norm"]:
            entered["x"] = x
        late = weight is mine["post_norm"] and at.kind == "verify"
        return clean(entered["x"] if late else x, weight, eps)

    alter(pipeline, NORM, change)


@fault(
    "stream-truncated-in-layer-2",
    "layer 2 leaves a residual stream that is cut to bfloat16",
    "target.layers.2.out",
    "prefill",
    "residual stream behind layer 2",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, held, x, step, tap):
        return clean(held, x, step, _Tapped(tap, "out", at, _cut) if held == 2 else tap)

    replaced(pipeline, pipeline.target, "layer", change)


@fault(
    "second-tile-without-experts",
    "prefill rows from 96 on do not take up the experts' output in layer 5",
    "target.layers.5.out",
    "prefill",
    "residual addition behind layer 5's experts",
    "prefill rows from 96 on, layer 5",
    "pass = prefill and row >= 96 and layer = 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, held, x, step, tap):
        if held != 5 or at.kind != "prefill":
            return clean(held, x, step, tap)
        lost = {}

        def remember(value):
            lost["ffn"] = value
            return value

        def without(value):
            value[:, 96:] -= lost["ffn"][:, 96:]
            return value

        return clean(held, x, step, _Tapped(_Tapped(tap, "ffn_out", at, remember, late=True), "out", at, without))

    replaced(pipeline, pipeline.target, "layer", change)


def _cut(value):
    bits = value.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(bfloat16).astype(np.float32)


class _Tapped:
    """A tap that changes one part on its way: before it is shown, or of what comes back where `late`."""

    def __init__(self, tap, part, at, change, late=False):
        self.tap, self.part, self.at_, self.change, self.late = tap, part, at, change, late

    def __call__(self, part, value):
        if part != self.part:
            return self.tap(part, value)
        if self.late:
            return self.at_.changed(self.tap(part, value), self.change)
        return self.tap(part, self.at_.changed(value, self.change))
