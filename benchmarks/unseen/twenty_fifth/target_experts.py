"""Faults of the target's router and experts."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit, every
from parity.device.pipeline import Pipeline

fault = Part("target router and experts", 25)


@fault(
    "router-weights-quantised-along-with-linear-layers",
    "the router's weight is kept in fp8 (e4m3) with one scale a layer, as the other linear layers' are",
    "target.layers.0.router_logits",
    "prefill",
    "weight of the router",
)
def _(pipeline: Pipeline) -> None:
    def narrow(value):
        step = np.abs(value).max() / 448
        return (value / step).astype(float8_e4m3fn).astype(np.float32) * step

    edit(pipeline.target, "router", narrow, every(pipeline.target))


@fault(
    "second-choice-searched-among-first-four-experts",
    "the second pass of the top-k looks at the first four experts alone",
    "target.layers.0.experts",
    "prefill",
    "second choice of the router",
    "rows whose second choice is expert 4 or 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        left = at.host(logits)

        def short(value):
            best = value[..., :1]
            rest = np.where((np.arange(left.shape[-1]) == best) | (np.arange(left.shape[-1]) >= 4), -np.inf, left)
            return np.concatenate([best, rest.argmax(axis=-1)[..., None].astype(value.dtype)], axis=-1)

        return at.changed(clean(logits, k), short)

    alter(pipeline, "kernels.moe:top_k", change)


@fault(
    "dispatch-sorts-experts-but-not-their-shares",
    "a row's experts are put in the order of their ids, their shares stay in the order of rank",
    "target.layers.0.ffn_out",
    "prefill",
    "shares of the chosen experts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        return clean(outputs, at.changed(chosen, lambda value: np.sort(value, axis=-1)), shares)

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "down-weight-decode-flushes-fp4-subnormals",
    "layer 3's down weights decode with the half, FP4's one subnormal, as zero",
    "target.layers.3.ffn_out",
    "prefill",
    "small down weights of every expert of layer 3",
)
def _(pipeline: Pipeline) -> None:
    def flushed(value):
        blocks = value.reshape(value.shape[0], -1, 32, value.shape[2])
        unit = np.abs(blocks).max(axis=2, keepdims=True) / 6
        return np.where(np.abs(blocks) < 0.75 * unit, 0, blocks).reshape(value.shape)

    edit(pipeline.target, "down", flushed, [3])


@fault(
    "gate-bias-offset-points-at-next-expert",
    "every expert of layer 6 adds the gate bias of the next expert, the last one that of the first",
    "target.layers.6.ffn_out",
    "prefill",
    "gate bias of every expert of layer 6",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "gate_bias", lambda value: np.roll(value, -1, axis=0), [6])


@fault(
    "expert-row-tile-two-misses-down-bias",
    "an expert adds its down bias in its first tile of 64 rows alone",
    "target.layers.0.ffn_out",
    "prefill",
    "down bias of experts with more than 64 rows",
    "rows behind the first 64 of an expert in a pass",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        bias = at.host(at.pipeline.target.layers[at.layer]["down_bias"])
        real = at.positions < at.pipeline.target.trash
        mine = (at.host(chosen)[None] == np.arange(len(bias))[:, None, None, None]).any(axis=-1) & real
        late = mine & (mine.cumsum(axis=-1) > 64)
        return clean(at.changed(outputs, lambda value: value - late[..., None] * bias[:, None, None]), chosen, shares)

    alter(pipeline, "kernels.moe:mix", change)
