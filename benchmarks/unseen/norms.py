"""Faults of the target's norms and of its residual stream."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.planting import Part, alter, replaced, scaled
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("norms and residual")
NORM = "kernels.target_layer:gpt_oss_norm"


@fault(
    "post-norm-of-the-layer-before",
    "layer 4's post-attention norm has layer 3's weight",
    "target.layers.4.router_logits",
    "prefill",
    "post-attention norm weight of layer 4",
)
def _(pipeline: Pipeline) -> None:
    layers = pipeline.target.layers
    layers[4]["post_norm"] = layers[3]["post_norm"]


@fault(
    "mean-over-first-tile",
    "layer 6's input norm takes the mean square of the first 64 of 96 columns",
    "target.layers.6.attn_in",
    "prefill",
    "input norm of layer 6",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        if weight is not pipeline.target.layers[6]["input_norm"]:
            return clean(x, weight, eps)
        scale = at.host(weight)

        def tiled(value):
            return value / np.sqrt(np.mean(np.square(value[..., :64]), axis=-1, keepdims=True) + eps) * scale

        return at.changed(x, tiled)

    alter(pipeline, NORM, change)


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
    "final-norm-tail-of-ones",
    "the final norm's weight is one from column 64 on",
    "target.pre_head_hidden",
    "prefill",
    "final norm weight, columns 64 to 95",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "norm", lambda value: np.where(np.arange(96) < 64, value, 1.0))


@fault(
    "final-norm-of-row-before",
    "the final norm divides the last verify row by the row before's root mean square",
    "target.pre_head_hidden",
    "verify",
    "final norm",
    "last row of verify passes",
    "pass = verify and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        if at.kind != "verify":
            return made
        size = np.sqrt(np.mean(np.square(at.host(x)), axis=-1, keepdims=True))

        def stale(value):
            value[:, -1] *= size[:, -1] / size[:, -2]
            return value

        return at.changed(made, stale)

    alter(pipeline, "target:gpt_oss_norm", change)


@fault(
    "input-norm-eps-after-rejection",
    "norms take an eps of 0.05 in the round behind one that accepted nothing",
    "target.layers.0.attn_in",
    "verify",
    "eps of every norm of the target's layers",
    "verify passes of a round behind one that accepted nothing",
    "pass = verify and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        return clean(x, weight, 0.05 if at.kind == "verify" and at.accepted == 0 else eps)

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


@fault(
    "norm-weight-in-eighths",
    "the post-attention norm weights of layers 5 to 7 are kept in fp8 (e5m2)",
    "target.layers.5.router_logits",
    "prefill",
    "post-attention norm weights of layers 5 to 7",
    "layers from 5 on",
    "layer >= 5",
)
def _(pipeline: Pipeline) -> None:
    from ml_dtypes import float8_e5m2

    edit(pipeline.target, "post_norm", lambda value: value.astype(float8_e5m2).astype(np.float32), range(5, 8))


@fault(
    "input-norm-columns-exchanged",
    "columns 31 and 32 of layer 7's input norm weight are twice what they are",
    "target.layers.7.attn_in",
    "prefill",
    "input norm weight of layer 7, columns 31 and 32",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "input_norm", scaled([31, 32], 2.0), [7])


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
