"""Faults of the target's router, of its experts and of what hands rows to them."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target router and experts", 19)
BLOCK = 32


@fault(
    "router-in-float8",
    "the router is quantised with all other linear layers, to fp8 (e4m3)",
    "target.layers.0.router_logits",
    "prefill",
    "router weight of every layer",
)
def _(pipeline: Pipeline) -> None:
    edit(
        pipeline.target,
        "router",
        lambda weight: weight.astype(float8_e4m3fn).astype(np.float32),
        every(pipeline.target),
    )


@fault(
    "chosen-logit-masked-by-zero",
    "top-k puts 0 in the place of a logit that was chosen: it is chosen once more where no other is above 0",
    "target.layers.0.experts",
    "prefill",
    "second choice of the router in every layer",
    "rows in which no router logit but the largest is above 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        left, chosen = at.host(logits), []
        for _ in range(k):
            best = left.argmax(axis=-1)[..., None]
            chosen.append(best)
            np.put_along_axis(left, best, 0, axis=-1)
        return at.array(np.concatenate(chosen, axis=-1), clean(logits, k))

    alter(pipeline, "kernels.moe:top_k", change)


@fault(
    "shares-left-unsorted",
    "for passes of a few rows each row's experts are sorted by id, and their shares stay sorted by size",
    "target.layers.0.ffn_out",
    "verify",
    "shares of a row's two experts, exchanged in every layer",
    "verify rows whose better expert has the larger id",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, chosen, shares, *rest):
        if at.kind == "verify":
            turned = (at.host(chosen)[..., :1] > at.host(chosen)[..., 1:]).astype(bool)
            shares = at.changed(shares, lambda value: np.where(turned, value[..., ::-1], value))
        return clean(x, chosen, shares, *rest)

    alter(pipeline, "kernels.moe:masked", change)


@fault(
    "scales-left-swizzled",
    "MXFP4 scales of the gate are read in the order that a tensor core wants: outputs of 32 lie 4 by 8, transposed",
    "target.layers.0.ffn_out",
    "prefill",
    "block scales of every expert's gate weight in every layer",
)
def _(pipeline: Pipeline) -> None:
    def swizzled(weight):
        experts, _, outputs = weight.shape
        blocks = weight.reshape(experts, -1, BLOCK, outputs)
        scales = 2.0 ** np.floor(np.log2(np.abs(blocks).max(axis=2, keepdims=True)))
        order = np.arange(outputs).reshape(-1, 4, 8).transpose(0, 2, 1).reshape(-1)
        return (blocks * (scales[..., order] / scales)).reshape(weight.shape)

    edit(pipeline.target, "gate", swizzled, every(pipeline.target))


@fault(
    "plus-one-inside-clamp",
    "1 is added to up before it is clamped to the limit, not behind",
    "target.layers.0.ffn_out",
    "prefill",
    "activation of every expert in every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        wide = np.minimum(at.host(gate), limit)
        lifted = np.clip(at.host(up) + 1, -limit, limit)
        return at.array(lifted * wide / (1 + np.exp(-alpha * wide)), gate)

    alter(pipeline, "kernels.moe:clamped_swiglu", change)


@fault(
    "lone-row-without-gate-bias",
    "an expert with a single row is run by a kernel for vectors, which adds no gate bias",
    "target.layers.0.ffn_out",
    "verify",
    "gate bias of an expert that one row chooses, in every layer",
    "rows that choose an expert which no other row of the pass chooses",
)
def _(pipeline: Pipeline) -> None:
    trash = pipeline.target.trash

    def change(at, clean, x, chosen, shares, weights, config):
        logical = at.positions < trash
        ids = at.host(chosen)
        loads = np.bincount(ids[:, logical].reshape(-1), minlength=config.experts)
        alone = (loads[ids] == 1) & logical[None, :, None]
        biased = at.changed(shares, lambda value: np.where(alone, 0, value))
        unbiased = at.changed(shares, lambda value: np.where(alone, value, 0))
        without = weights | {"gate_bias": weights["gate_bias"] * 0.0}
        return clean(x, chosen, biased, weights, config) + clean(x, chosen, unbiased, without, config)

    alter(pipeline, "kernels.moe:masked", change)
