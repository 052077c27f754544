"""Eleventh set: faults of the experts."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("experts", 11)


# After https://github.com/Avarok-Cybersecurity/atlas/pull/474: a grid by tiles of 128, a kernel that takes 64 columns.
@fault(
    "columns-that-attention-left",
    "the grid of the experts' sum covers 64 of 96 columns, and its buffer is the one that attention's output was in",
    "target.layers.0.ffn_out",
    "prefill",
    "the experts' sum in every layer, columns 64 to 95: attention's output of the same layer",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def watch(at, clean, *given):
        made = clean(*given)
        held["attention"] = at.host(made)
        return made

    def change(at, clean, *given):
        def keep(rows):
            rows[..., 64:] = held["attention"][..., 64:]
            return rows

        return at.changed(clean(*given), keep)

    alter(pipeline, "kernels.target_layer:row_parallel", watch)
    alter(pipeline, "kernels.moe:mixture", change)


# After https://github.com/tile-ai/TileOPs/pull/1952: tiles over all rows, an expert a tile.
@fault(
    "tile-across-two-experts",
    "prefill rows are sorted by expert and cut into tiles of 16, and all of a tile go through its first row's expert",
    "target.layers.0.ffn_out",
    "prefill",
    "expert of the rows that share a tile of 16 with rows of an expert before theirs: that expert",
    "prefill rows that are among an expert's first ones, up to 15, in a tile of 16 that begins in an expert before",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        made = clean(outputs, chosen, shares)
        if at.kind != "prefill":
            return made
        count = int((at.positions < pipeline.target.trash).sum())
        ids = at.host(chosen)[0, :count].reshape(-1)
        order = np.argsort(ids, kind="stable")
        used = np.empty_like(ids)
        used[order] = ids[order][np.arange(len(ids)) // 16 * 16]
        row = np.arange(len(ids)) // chosen.shape[-1]
        parts = at.host(outputs)[used, 0, row] * at.host(shares)[0, :count].reshape(-1, 1)

        def mix(rows):
            rows[0, :count] = parts.reshape(count, chosen.shape[-1], -1).sum(axis=1)
            return rows

        return at.changed(made, mix)

    alter(pipeline, "kernels.moe:mix", change)


# From the equations: one scratch for two experts that run one behind the other.
@fault(
    "even-experts-take-the-next-activation",
    "in verify passes two experts share a scratch, and the second one has written its activation before the first "
    "one's down projection reads",
    "target.layers.0.ffn_out",
    "verify",
    "the input of down in experts 0, 2 and 4: the activation of expert 1, 3 or 5 of the same row",
    "verify rows that choose expert 0, 2 or 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, active, weight, bias):
        if at.kind == "verify":
            active = at.changed(active, lambda rows: rows[np.arange(len(rows)) | 1])
        return clean(active, weight, bias)

    alter(pipeline, "kernels.moe:wide_linear", change)


# From the equations: a buffer between two kernels, in the dtype of the checkpoint.
@fault(
    "expert-outputs-rounded",
    "outputs of experts are handed to the kernel that mixes them in a buffer of bfloat16",
    "target.layers.0.ffn_out",
    "prefill",
    "output of every expert in every layer, its down bias included: rounded to bfloat16 in front of the shares",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        narrow = at.changed(outputs, lambda rows: rows.astype(ml_dtypes.bfloat16).astype(np.float32))
        return clean(narrow, chosen, shares)

    alter(pipeline, "kernels.moe:mix", change)


# Of the class of https://github.com/tenstorrent/tt-metal/pull/49619: where gate's and up's biases are added.
@fault(
    "biases-behind-the-clamp",
    "gate and up are clamped as their projections leave them, and their biases are added to what is clamped",
    "target.layers.0.ffn_out",
    "prefill",
    "clamps of gate and up in every expert of every layer: of the projections without their biases; it shows where a "
    "limit is passed with a bias or without it",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, gate, up, limit, alpha):
        layer = pipeline.target.layers[at.layer]
        gate_bias, up_bias = (at.host(layer[name])[:, None] for name in ("gate_bias", "up_bias"))
        wide = np.minimum(at.host(gate) - gate_bias, np.float32(limit)) + gate_bias
        lifted = np.clip(at.host(up) - up_bias, -limit, limit) + up_bias + np.float32(1)
        return at.array((lifted * wide / (1 + np.exp(-alpha * wide))).astype(np.float32), gate)

    alter(pipeline, "kernels.moe:clamped_swiglu", change)
