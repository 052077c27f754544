"""Faults of the target's choice of experts and of the experts."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("target experts", 17)
FFN, MIX = "target.layers.0.ffn_out", "kernels.moe:mix"
BLOCK, EXPERTS = 32, 6
FOURS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
"""What four bits hold, without the sign."""


def _before(ids: np.ndarray) -> np.ndarray:
    """How many rows of the pass in front of each one chose the same expert: int [B, S, k]."""
    mine = (ids[..., None] == np.arange(EXPERTS)).any(axis=-2)
    return np.take_along_axis(np.cumsum(mine, axis=1) - mine, ids, axis=-1)


@fault(
    "experts-chosen-before-the-bias",
    "the choice of experts is made on logits to which the router's bias is added only afterwards",
    "target.layers.0.experts",
    "prefill",
    "chosen experts of every layer, router bias",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        bias = at.host(pipeline.target.layers[at.layer]["router_bias"])
        return clean(at.changed(logits, lambda value: value - bias), k)

    alter(pipeline, "kernels.moe:top_k", change)


@fault(
    "expert-outputs-kept-in-bfloat16",
    "an expert's output is written in bfloat16 before its share weights it and the sum takes it up",
    FFN,
    "prefill",
    "outputs of every expert of every layer, rounded to bfloat16",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, *rest):
        return clean(at.changed(outputs, lambda value: value.astype(bfloat16).astype(np.float32)), *rest)

    alter(pipeline, MIX, change)


@fault(
    "down-scales-of-the-next-output",
    "the block scales of layer 2's down weights are read one output too far",
    "target.layers.2.ffn_out",
    "prefill",
    "scales of the down weight of every expert of layer 2",
)
def _(pipeline: Pipeline) -> None:
    def late(value):
        blocks = value.reshape(value.shape[0], -1, BLOCK, value.shape[-1])
        scales = np.floor(np.log2(np.abs(blocks).max(axis=2, keepdims=True) + 1e-30))
        return (blocks * np.exp2(np.roll(scales, -1, axis=-1) - scales)).reshape(value.shape)

    edit(pipeline.target, "down", late, [2])


@fault(
    "gate-and-up-packed-once-more",
    "layer 6's gate and up weights, stored in bfloat16, were packed to MXFP4 at loading",
    "target.layers.6.ffn_out",
    "prefill",
    "gate and up weights of every expert of layer 6, rounded to four bits",
)
def _(pipeline: Pipeline) -> None:
    def packed(value):
        blocks = value.reshape(value.shape[0], -1, BLOCK, value.shape[-1])
        scale = np.exp2(np.floor(np.log2(np.abs(blocks).max(axis=2, keepdims=True) + 1e-30)) - 2)
        nearest = np.abs(np.abs(blocks / scale)[..., None] - FOURS).argmin(axis=-1)
        return (np.sign(blocks) * FOURS[nearest] * scale).reshape(value.shape)

    edit(pipeline.target, "gate up", packed, [6])


@fault(
    "shares-of-the-row-tile-before",
    "an expert weights its second tile of 32 rows, and later ones, by the shares of the tile before",
    FFN,
    "prefill",
    "shares of an expert's rows behind its first 32, in every layer",
    "prefill rows whose expert has had 32 rows before",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        if at.kind != "prefill":
            return clean(outputs, chosen, shares)
        ids = at.host(chosen)

        def stale(value):
            made = value.copy()
            for expert in range(EXPERTS):
                places = np.argwhere(ids == expert)
                for place, earlier in zip(places[32:], places[:-32], strict=True):
                    made[tuple(place)] = value[tuple(earlier)]
            return made

        return clean(outputs, chosen, at.changed(shares, stale))

    alter(pipeline, MIX, change)


@fault(
    "verify-experts-hold-two-rows",
    "an expert takes two rows of a verify pass, a third one goes without it",
    FFN,
    "verify",
    "capacity of the experts of every layer",
    "verify rows whose expert has had 2 rows of the pass before",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        if at.kind == "verify":
            over = _before(at.host(chosen)) >= 2
            shares = at.changed(shares, lambda value: np.where(over, 0.0, value))
        return clean(outputs, chosen, shares)

    alter(pipeline, MIX, change)
