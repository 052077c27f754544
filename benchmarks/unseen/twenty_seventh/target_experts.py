"""Faults of the router, the dispatch and the experts of the target."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("router and experts", 27)
MIX, SWIGLU = "kernels.moe:mix", "kernels.moe:clamped_swiglu"


@fault(
    "router-weight-quantised-to-fp8",
    "the router is not left out of quantisation: its weight is in fp8 (e4m3), one scale for all",
    "target.layers.0.router_logits",
    "prefill",
    "router weight of every layer",
)
def _(pipeline: Pipeline) -> None:
    def narrow(value):
        scale = np.abs(value).max() / 448
        return (value / scale).astype(float8_e4m3fn).astype(np.float32) * scale

    edit(pipeline.target, "router", narrow, every(pipeline.target))


@fault(
    "mxfp4-smallest-code-read-as-zero",
    "in the down weights the smallest code of a block of 32, half of its scale, is flushed to zero",
    "target.layers.0.ffn_out",
    "prefill",
    "subnormal codes of the down weights",
)
def _(pipeline: Pipeline) -> None:
    def flushed(value):
        blocks = value.reshape(len(value), -1, 32, value.shape[-1])
        top = np.maximum(np.abs(blocks).max(axis=2, keepdims=True), 1e-30)
        scale = 2.0 ** (np.floor(np.log2(top)) - 2)
        return np.where(np.abs(blocks) < 0.75 * scale, 0, blocks).reshape(value.shape)

    edit(pipeline.target, "down", flushed, every(pipeline.target))


@fault(
    "up-clamped-behind-plus-one",
    "up + 1 is clamped to the limit where up is meant",
    "target.layers.0.ffn_out",
    "prefill",
    "order of clamp and plus one",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        def before(value):
            return np.clip(value + 1, -limit, limit) - 1

        return clean(gate, at.array(before(at.host(up)), up), limit, alpha)

    alter(pipeline, SWIGLU, change)


@fault(
    "expert-activation-saturates-past-thirty",
    "the activation is cut off at 30, the end of a calibrated range",
    "target.layers.0.ffn_out",
    "prefill",
    "activation of every expert, large values",
    "activations beyond 30 in magnitude",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        return at.changed(clean(*given), lambda value: np.clip(value, -30, 30))

    alter(pipeline, SWIGLU, change)


@fault(
    "shares-in-order-of-expert-ids",
    "the dispatch sorts a row's experts by number and leaves their shares in the order of their logits",
    "target.layers.0.ffn_out",
    "prefill",
    "shares of a row's two experts",
    "rows whose best expert has the higher number",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        return clean(outputs, at.changed(chosen, lambda value: np.sort(value, axis=-1)), shares)

    alter(pipeline, MIX, change)


@fault(
    "expert-of-one-row-without-down-bias",
    "an expert that a single row of the pass chose runs in a matrix-vector kernel without the down bias",
    "target.layers.0.ffn_out",
    "verify",
    "down bias of experts with one row",
    "experts that exactly one row of the pass chose",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        real = at.positions != pipeline.target.trash
        load = np.bincount(at.host(chosen)[0, real].reshape(-1), minlength=outputs.shape[0])
        bias = at.host(pipeline.target.layers[at.layer]["down_bias"])
        lost = bias[:, None, None] * (load == 1)[:, None, None, None]
        return clean(at.changed(outputs, lambda value: value - lost), chosen, shares)

    alter(pipeline, MIX, change)


@fault(
    "choice-of-last-row-in-tile-stale",
    "the last row of every tile of 32 prefill rows has the experts of the row before",
    "target.layers.0.experts",
    "prefill",
    "experts chosen by the last row of a tile",
    "prefill rows that are the last of a tile of 32",
    "pass = prefill and row % 32 = 31",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        def stale(value):
            value[:, 31::32] = value[:, 30::32]
            return value

        chosen = clean(logits, k)
        return at.changed(chosen, stale) if at.kind == "prefill" else chosen

    alter(pipeline, "kernels.moe:top_k", change)
