"""Twelfth set: faults of taps and of their fusion."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps", 12)


# From the equations: accepted rows are found from the last one back, and stay in that order.
@fault(
    "taps-in-reverse",
    "accepted rows of a verify pass are gathered from the last one back, and their taps keep that order",
    "drafter.taps",
    "draft",
    "order of the taps of committed rows: the last one's first",
    "draft passes of two committed rows or more, all of these but the middle one of an odd number",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, first, count, *rest):
        def reverse(rows):
            rows[:, first : first + count] = rows[:, first : first + count][:, ::-1].copy()
            return rows

        if at.kind == "draft":
            taps = at.changed(taps, reverse)
        return clean(taps, first, count, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


# Of the class of https://github.com/sgl-project/sglang/pull/20492: taps that are gathered in the wrong group of ranks.
@fault(
    "first-half-of-taps-gathered-twice",
    "two ranks have half of a tap's columns each, and the gather takes the first rank's for both",
    "drafter.taps",
    "prefill",
    "columns 48 to 95 of each of the three taps: those of columns 0 to 47",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, numbers):
        def gather(rows):
            thirds = rows.reshape(*rows.shape[:-1], len(numbers), 2, -1)
            return np.repeat(thirds[..., :1, :], 2, axis=-2).reshape(rows.shape)

        return at.changed(clean(streams, numbers), gather)

    replaced(pipeline, pipeline.target, "join", change)


# From the equations: a product that is added to what its buffer holds.
@fault(
    "learnt-hidden-adds-up",
    "the fused hidden of masked rows is kept in a buffer, to which each round of a text adds it again",
    "drafter.fc_out",
    "draft",
    "fused hidden of masked rows: in round r that of r masked rows together",
    "masked rows from round 2 on",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def add(rows):
            rows[:, at.committed : at.committed + at.masked] *= at.round
            return rows

        made = clean(*given)
        return at.changed(made, add) if at.kind == "draft" else made

    alter(pipeline, "peagle:fuse", change)
