"""Tenth set: faults of taps and of their fusion."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps", 10)


# Of the class of https://github.com/ROCm/hip/issues/3902: two buffers that take turns.
@fault(
    "first-tap-from-the-other-buffer",
    "taps lie in two buffers that take turns, and drafts of even rounds read the first tap from the wrong one",
    "drafter.taps",
    "draft",
    "the first of three taps: that of the same row of the target pass before",
    "draft passes of even rounds",
    "pass = draft and round % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, taps, first, *rest):
        if at.kind == "draft":
            held[at.round] = at.host(taps)
            if at.round % 2 == 0:
                other = held[at.round - 1]

                def turn(rows):
                    rows[..., :96] = other[:, : rows.shape[1], :96]
                    return rows

                taps = at.changed(taps, turn)
        return clean(taps, first, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


# Of the class of https://github.com/sgl-project/sglang/pull/32334: a norm that some drafters of the family have.
@fault(
    "each-tap-normed-before-fusion",
    "each tap is divided by its root mean square in front of fc, as drafters with norms there have it",
    "drafter.fc_out",
    "prefill",
    "fc's input, mask_hidden included: each third of it over its own root mean square",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps):
        def norm(rows):
            thirds = rows.reshape(*rows.shape[:-1], 3, -1)
            root = np.sqrt(np.square(thirds).mean(axis=-1, keepdims=True) + np.float32(1e-5))
            return (thirds / root).reshape(rows.shape)

        return at.changed(clean(taps), norm)

    replaced(pipeline, pipeline.drafter, "normed", change)


# From the equations: a buffer between two kernels, in the dtype of the checkpoint.
@fault(
    "fused-hidden-in-bfloat16",
    "the fused hidden is handed to the midlayer in a buffer of bfloat16",
    "drafter.fc_out",
    "prefill",
    "fused hidden of every row: rounded to bfloat16",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        return at.changed(clean(*given), lambda rows: rows.astype(ml_dtypes.bfloat16).astype(np.float32))

    alter(pipeline, "peagle:fuse", change)
