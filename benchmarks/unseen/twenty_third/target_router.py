"""Faults of the target's router and of the dispatch to experts."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target router and dispatch", 23)
MIX, OUT = "kernels.moe:mix", "target.layers.0.ffn_out"


@fault(
    "router-quantised-with-the-rest",
    "the router's weight is quantised to fp8 (e4m3) with the other linear layers, though it is to be left out",
    "target.layers.0.router_logits",
    "prefill",
    "router's weight in every layer",
)
def _(pipeline: Pipeline) -> None:
    def narrow(value):
        scale = np.abs(value).max() / 448
        return (value / scale).astype(float8_e4m3fn).astype(np.float32) * scale

    edit(pipeline.target, "router", narrow, every(pipeline.target))


@fault(
    "router-bias-only-for-choosing",
    "the router's bias serves the choice of experts alone, as DeepSeek's does: shares come from logits without it",
    OUT,
    "prefill",
    "logits that the shares are made of",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, logits, chosen, weights, config):
        bias = at.host(weights["router_bias"])
        return clean(x, at.changed(logits, lambda value: value - bias), chosen, weights, config)

    alter(pipeline, "kernels.moe:mixture", change)


@fault(
    "swish-of-gate-scaled-before",
    "the gate is multiplied by 1.702 in front of a SiLU kernel, which multiplies by what it is given: 1.702 too much",
    OUT,
    "prefill",
    "activation of every expert",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        return at.changed(clean(gate, up, limit, alpha), lambda value: value * alpha)

    alter(pipeline, "kernels.moe:clamped_swiglu", change)


@fault(
    "choices-sorted-shares-not",
    "a row's experts are sorted by id for the dispatch, their shares stay in the order of the logits",
    OUT,
    "prefill",
    "share that a chosen expert takes",
    "rows whose first choice has the higher id of the two",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        return clean(outputs, at.changed(chosen, lambda value: np.sort(value, axis=-1)), shares)

    alter(pipeline, MIX, change)


@fault(
    "shares-of-tile-end-not-stored",
    "shares of a prefill are stored in tiles of 32 rows, and the last row of each tile takes those of the row before",
    OUT,
    "prefill",
    "shares of the last row of a tile of 32",
    "each 32nd row of a prefill",
    "pass = prefill and row % 32 = 31",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        def stale(value):
            value[:, 31::32] = value[:, 30::32][:, : value[:, 31::32].shape[1]]
            return value

        return clean(outputs, chosen, at.changed(shares, stale) if at.kind == "prefill" else shares)

    alter(pipeline, MIX, change)
