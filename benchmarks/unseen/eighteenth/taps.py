"""Faults of the taps that the drafter takes, and of their fusion."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps and fuse", 18)
TAPS = "drafter.taps"


@fault(
    "mean-of-the-taps-in-every-third",
    "the three taps are averaged, and their mean stands in the place of each",
    TAPS,
    "prefill",
    "all three taps, their mean",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def mean(value):
            return np.tile(value.reshape(*value.shape[:2], len(taps), -1).mean(axis=2), len(taps))

        return at.changed(clean(streams, taps), mean)

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "tap-rows-of-two-ranks-in-turn",
    "two ranks have half of a prefill's padded rows each, and taps are gathered a row of each in turn",
    TAPS,
    "prefill",
    "rows of all three taps of a prefill, the halves in turn",
    "prefill rows but the first, and the draft of round 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        made = clean(streams, taps)
        if at.kind != "prefill":
            return made
        order = np.arange(made.shape[1]).reshape(2, -1).T.ravel()
        return at.changed(made, lambda value: value[:, order])

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "fc-averages-the-taps",
    "fc's sum over three taps is divided by their number",
    "drafter.fc_out",
    "prefill",
    "fused hidden of every row, a third of what it is",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        return at.changed(clean(*given), lambda value: value / 3)

    replaced(pipeline, pipeline.drafter, "fused", change)


@fault(
    "committed-ids-through-d2t",
    "committed ids, the target's own, are taken for draft ids and mapped to the target's vocabulary once more",
    "drafter.input_ids",
    "draft",
    "ids of committed rows, their d2t offset added",
    "committed rows of draft passes whose id is below 992 and has an offset",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        if at.kind == "draft":
            offsets = at.host(pipeline.drafter.outer["d2t"])
            known = np.minimum(ids, len(offsets) - 1)
            ids = np.where(ids < len(offsets), np.minimum(ids + offsets[known], 1279), ids).astype(ids.dtype)
        return clean(ids, others)

    replaced(pipeline, pipeline.drafter, "layout", change)
