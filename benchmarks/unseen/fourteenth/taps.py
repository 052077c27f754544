"""Fourteenth set: faults of the fusion of taps."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps", 14)


# From the equations: what a chain drafter hands on, where all drafts run at once.
@fault(
    "masked-rows-take-the-last-fused-hidden",
    "masked rows take over the fused hidden of the last committed row, as the steps of a chain begin",
    "drafter.fc_out",
    "draft",
    "fused hidden of all masked rows: that of the last committed row, where fc of mask_hidden is meant",
    "masked rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        made = clean(*given)
        if not at.masked:
            return made

        def hand_on(rows):
            rows[:, at.committed : at.committed + at.masked] = rows[:, at.committed - 1 : at.committed]
            return rows

        return at.changed(made, lambda rows: hand_on(rows.copy()))

    alter(pipeline, "peagle:fuse", change)


# Of the class of https://github.com/sgl-project/sglang/pull/21272: an fc that runs where widths differ, and they agree.
@fault(
    "fc-not-run",
    "the pass hands over one tap, the last, and fc is skipped as it has the hidden's width already",
    "drafter.fc_out",
    "prefill",
    "fused hidden of every row: the third tap itself, of masked rows the last third of mask_hidden, without fc",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, mask_hidden, committed, fc):
        def last(weight):
            return np.eye(*weight.shape, k=weight.shape[1] - weight.shape[0], dtype=weight.dtype)

        return clean(taps, mask_hidden, committed, at.changed(fc, last))

    alter(pipeline, "peagle:fuse", change)
