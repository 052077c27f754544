"""Faults of the taps and of what the drafter's fc makes of them."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("taps and fc", 19)
FUSED = "drafter.fc_out"


@fault(
    "taps-stacked-not-permuted",
    "taps are stacked as [taps, rows, H] and reshaped to [rows, taps * H] without a transposition between",
    "drafter.taps",
    "prefill",
    "axes of the taps' buffer: a row gets streams of three neighbouring rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        stacked = np.stack([at.host(streams[number])[0] for number in taps])
        return at.array(stacked.reshape(1, stacked.shape[1], -1), streams[0])

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "fc-partial-tile-lost",
    "fc contracts whole tiles of 128 inputs and leaves out the last 32 of 288",
    FUSED,
    "prefill",
    "inputs 256 to 287 of fc, the last third of the third tap",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value = value.copy()
        value[256:] = 0
        return value

    edit(pipeline.drafter, "fc", cut)


@fault(
    "fuse-count-in-whole-tiles",
    "a prefill counts its rows with taps in whole tiles of 32: rows of the last tile get mask_hidden",
    FUSED,
    "prefill",
    "input of fc in rows of the last tile, mask_hidden in the place of taps",
    "rows of a prefill behind its last whole tile of 32 rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, committed):
        return clean(taps, committed // 32 * 32 if at.kind == "prefill" else committed)

    replaced(pipeline, pipeline.drafter, "fused", change)


@fault(
    "mask-hidden-in-one-row",
    "mask_hidden is copied to the first masked row alone, the others keep what the taps' buffer holds",
    FUSED,
    "draft",
    "input of fc in masked rows behind the first one, leftover taps in the place of mask_hidden",
    "masked rows of a draft behind the first one",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, committed):
        if not at.masked:
            return clean(taps, committed)
        held = at.host(taps)
        held[:, committed] = at.host(pipeline.drafter.outer["mask_hidden"])[0]
        return clean(at.array(held, taps), held.shape[1])

    replaced(pipeline, pipeline.drafter, "fused", change)
