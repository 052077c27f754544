"""Thirteenth set: faults of the experts."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter, scaled
from benchmarks.unseen.planting import Part
from benchmarks.unseen.twelfth.blocks import parts
from parity.device.pipeline import Pipeline

fault = Part("experts", 13)


# After https://github.com/vllm-project/vllm-xpu-kernels/issues/453: rows sorted by expert, of which one is written.
@fault(
    "row-0-alone-dispatched",
    "rows of a verify pass are sorted by expert, and all but row 0 become padding",
    "target.layers.0.ffn_out",
    "verify",
    "the experts' sum in every layer: zero",
    "verify rows but the first",
    "pass = verify and row >= 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        def drop(rows):
            rows[:, 1:] = 0
            return rows

        made = clean(outputs, chosen, shares)
        return at.changed(made, drop) if at.kind == "verify" else made

    alter(pipeline, "kernels.moe:mix", change)


# After https://github.com/NVIDIA/cutlass/issues/3568: a main loop that always runs both of its buffers.
@fault(
    "odd-tile-runs-both-buffers",
    "down runs over five tiles of 32 inputs in two buffers, and adds up the second one a third time, tile 3 again",
    "target.layers.0.ffn_out",
    "prefill",
    "contraction of every expert's down projection: inputs 96 to 127 count twice",
)
def _(pipeline: Pipeline) -> None:
    twice = scaled(slice(96, 128), 2)

    def change(at, clean, active, weight, bias):
        return clean(at.changed(active, twice), weight, bias)

    alter(pipeline, "kernels.moe:wide_linear", change)


# After https://github.com/ROCm/rocm-libraries/pull/6663: splits of the inputs, and windows of scales that stay at 0.
@fault(
    "second-split-by-the-first-scales",
    "gate and up split their inputs behind 64 for few rows, and the second split reads its scales from the first one's "
    "beginning",
    "target.layers.0.ffn_out",
    "verify",
    "block scales of gate and up in every expert, inputs 64 to 95: those of inputs 0 to 31",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def misread(weight):
        codes, scales = parts(weight)
        return (codes * scales[:, [0, 1, 0]][:, :, None]).reshape(weight.shape)

    def change(at, clean, x, weights, config):
        if at.kind == "verify":
            weights = weights | {name: at.changed(weights[name], misread) for name in ("gate", "up")}
        return clean(x, weights, config)

    alter(pipeline, "kernels.moe:experts", change)


# From the equations: an accumulator of the operands' dtype, a tile a step.
@fault(
    "gate-and-up-add-up-in-bfloat16",
    "gate and up run over three tiles of 32 inputs, and add to an accumulator of bfloat16",
    "target.layers.0.ffn_out",
    "prefill",
    "the accumulator of every expert's gate and up: bfloat16 behind each of three tiles of inputs",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        if weight.ndim != 3:
            return clean(x, weight, bias)
        held, rows, columns = np.float32(0), at.host(x), at.host(weight)
        for first in range(0, rows.shape[-1], 32):
            part = slice(first, first + 32)
            held = (held + rows[..., part] @ columns[:, part]).astype(ml_dtypes.bfloat16).astype(np.float32)
        return at.array(held + at.host(bias), x)

    alter(pipeline, "kernels.moe:linear", change)


# After https://github.com/vllm-project/vllm-ascend/pull/11916: a slope that one of three paths hands over.
@fault(
    "slope-left-at-zero",
    "the sigmoid's slope is not handed to the path for bfloat16, and its default is 0",
    "target.layers.0.ffn_out",
    "prefill",
    "the sigmoid in every expert's activation: one half throughout; clamps and up + 1 are right",
)
def _(pipeline: Pipeline) -> None:
    alter(pipeline, "kernels.moe:clamped_swiglu", lambda at, clean, gate, up, limit, alpha: clean(gate, up, limit, 0.0))
