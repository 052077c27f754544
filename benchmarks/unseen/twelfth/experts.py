"""Twelfth set: faults of the experts."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("experts", 12)


# After https://github.com/microsoft/onnxruntime/pull/27221: a limit of 0 where none is handed over.
@fault(
    "limit-left-at-zero",
    "the activation's limit is not handed over, and its default is 0, by which gate and up are clamped",
    "target.layers.0.ffn_out",
    "prefill",
    "clamps in every expert of every layer: gate is 0 at the most, up is 0",
)
def _(pipeline: Pipeline) -> None:
    alter(pipeline, "kernels.moe:clamped_swiglu", lambda at, clean, gate, up, limit, alpha: clean(gate, up, 0.0, alpha))


# From the equations: addition and norm give two results, and the experts are handed the other one.
@fault(
    "experts-take-the-stream",
    "addition and norm give the stream and its norm; the router takes the norm, the experts the stream",
    "target.layers.0.ffn_out",
    "prefill",
    "input of every layer's experts: the residual stream, without the post-attention norm; the router's is right",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def watch(at, clean, x, weight, eps):
        if weight is pipeline.target.layers[at.layer]["post_norm"]:
            held["stream"] = x
        return clean(x, weight, eps)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", watch)
    alter(pipeline, "kernels.moe:mixture", lambda at, clean, x, *rest: clean(held["stream"], *rest))


# From the equations: weights that are fetched ahead, and a second buffer that is one row behind.
@fault(
    "second-expert-fetched-a-row-late",
    "in verify passes each row's weights are fetched ahead into two buffers, and the second one's are the row before's",
    "target.layers.0.ffn_out",
    "verify",
    "weights of a row's second expert in every layer: those of the second expert of the row before; shares are right",
    "verify rows but the first, whose second expert is not that of the row before",
    "pass = verify and row >= 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        made = clean(outputs, chosen, shares)
        if at.kind != "verify":
            return made
        ids = at.host(chosen)[0].copy()
        ids[1:, 1] = ids[:-1, 1].copy()
        mine = at.host(outputs)[ids, 0, np.arange(len(ids))[:, None]]
        return at.changed(made, lambda rows: (mine * at.host(shares)[0, ..., None]).sum(axis=1)[None])

    alter(pipeline, "kernels.moe:mix", change)


# Of the class of https://github.com/pytorch/pytorch/issues/67384: matrix units that take ten bits of a float32.
@fault(
    "down-operands-in-ten-bits",
    "the experts' down projection takes its operands in ten bits behind the point",
    "target.layers.0.ffn_out",
    "prefill",
    "operands of every expert's down projection: ten bits behind the point, where float32 has 23",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def narrow(value):
        bits = value.view(np.uint32)
        return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)

    def change(at, clean, active, weight, bias):
        return clean(at.changed(active, narrow), at.changed(weight, narrow), bias)

    alter(pipeline, "kernels.moe:wide_linear", change)
