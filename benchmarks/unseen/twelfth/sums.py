"""Twelfth set: faults of sums over splits of keys, over heads and over ranks in the target."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("sums", 12)
OUTPUT = "kernels.target_layer:row_parallel"


# Of the class of https://github.com/ROCm/rocm-libraries/issues/12227: splits of the keys, and how they are merged.
@fault(
    "splits-averaged",
    "full layers attend in splits of 64 keys, and the splits' outputs are averaged, not weighted by their sums",
    "target.layers.1.attn_out",
    "prefill",
    "weights of the splits of 64 keys in full layers: alike; sinks take away what they should",
    "rows at positions from 64 on, odd layers",
    "position >= 64 and layer % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        made = clean(x, sink)
        if sink is None or pipeline.target.windows[at.layer] is not None:
            return made

        def average(weights):
            splits = weights.reshape(*weights.shape[:-1], -1, 64)
            sums = splits.sum(axis=-1, keepdims=True)
            used = (sums > 0).sum(axis=-2, keepdims=True)
            each = sums.sum(axis=-2, keepdims=True) / used
            return (splits / np.where(sums > 0, sums, 1) * each).reshape(weights.shape)

        return at.changed(made, average)

    alter(pipeline, "kernels.attention:softmax", change)


# Of the class of https://github.com/sgl-project/sglang/issues/37187: sums of ranks by way of scattered rows.
@fault(
    "odd-row-not-scattered",
    "two ranks share out the rows of a verify pass to add their partial sums, and the fifth row belongs to none",
    "target.layers.0.attn_out",
    "verify",
    "attention's output projection in every target layer: row 4 has the first rank's sum alone, of heads 0 to 3",
    "row 4 of verify passes",
    "pass = verify and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        def drop(rows):
            rows[:, 4, rows.shape[-1] // 2 :] = 0
            return rows

        return clean(at.changed(x, drop) if at.kind == "verify" else x, weight, bias)

    alter(pipeline, OUTPUT, change)


# From the equations: an accumulator in the dtype of the checkpoint, a head a step.
@fault(
    "heads-add-up-in-bfloat16",
    "the output projection runs a head at a time, and adds to an accumulator of bfloat16",
    "target.layers.0.attn_out",
    "prefill",
    "the accumulator of attention's output projection in every target layer: bfloat16 behind each of the 8 heads",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    heads = pipeline.target.config.attention.heads

    def change(at, clean, x, weight, bias):
        held = np.float32(0)
        parts = zip(np.split(at.host(x), heads, axis=-1), np.split(at.host(weight), heads), strict=True)
        for rows, columns in parts:
            held = (held + rows @ columns).astype(ml_dtypes.bfloat16).astype(np.float32)
        return at.array(held + at.host(bias), x)

    alter(pipeline, OUTPUT, change)


# After https://github.com/tenstorrent/tt-llk/issues/115: every tile that comes is added to the first one here.
@fault(
    "tiles-added-to-the-first",
    "two ranks have three experts each, and the second one's three tiles of 32 columns are all added to the first tile",
    "target.layers.0.ffn_out",
    "prefill",
    "the experts' sum over ranks in every layer: experts 3 to 5 are missing from columns 32 to 95, and columns 0 to 31 "
    "have what belongs there beside their own",
    "rows that choose expert 3, 4 or 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        first = np.arange(outputs.shape[0])[:, None, None, None] < outputs.shape[0] // 2
        mine, other = (at.changed(outputs, lambda rows, kept=kept: rows * kept) for kept in (first, ~first))
        tiles = at.host(clean(other, chosen, shares)).reshape(*chosen.shape[:2], -1, 32).sum(axis=-2)

        def add(rows):
            rows[..., :32] += tiles
            return rows

        return at.changed(clean(mine, chosen, shares), add)

    alter(pipeline, "kernels.moe:mix", change)
