"""Eleventh set: faults of taps and of their fusion."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("taps", 11)


# Of the class of https://github.com/vllm-project/vllm/issues/7505: hidden states of rows that were not accepted.
@fault(
    "taps-counted-from-the-end",
    "as many taps as rows are committed are taken from the end of a verify pass, where they stand at its beginning",
    "drafter.taps",
    "draft",
    "taps of committed rows: those of as many of the last rows of the verify pass, rejected ones among them",
    "draft passes behind a round that rejected a draft",
    "pass = draft and accepted < 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, first, count, *rest):
        if at.kind == "draft" and at.round > 1:
            first = taps.shape[1] - count
        return clean(taps, first, count, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


# From the equations: two ranks with half of the columns each, and a gather along another axis.
@fault(
    "fused-columns-interleaved",
    "fc's output is gathered from two ranks with 48 columns each, one column of each in turn",
    "drafter.fc_out",
    "prefill",
    "order of the fused hidden's columns: 0, 48, 1, 49 and so on",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def gather(rows):
            return rows.reshape(*rows.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(rows.shape)

        return at.changed(clean(*given), gather)

    alter(pipeline, "peagle:fuse", change)


# From the equations: a learnt hidden that a loader takes for as wide as one tap.
@fault(
    "one-mask-for-three-taps",
    "the first third of the learnt hidden of masked rows is read and stands in the place of all three taps",
    "drafter.fc_out",
    "draft",
    "mask_hidden: its columns 0 to 95 three times",
    "masked rows",
)
def _(pipeline: Pipeline) -> None:
    rewritten(pipeline, pipeline.drafter.outer, "mask_hidden", lambda hidden: np.tile(hidden[..., :96], 3))
