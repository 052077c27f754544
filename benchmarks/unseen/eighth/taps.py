"""Eighth set: faults of taps and of their fusion."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps", 8)
LAST = 5
"""The expert that is added last, and the number of the third tap."""


# From the equations: a copy of the stream that does not wait for all that is added to it.
@fault(
    "tapped-before-the-last-expert",
    "experts are added to the stream one after the other, and the third tap is copied before expert 5 of layer 4 is",
    "drafter.taps",
    "prefill",
    "the third tap: in_of[5] without what expert 5 of layer 4 adds",
    "rows that choose expert 5 in layer 4",
)
def _(pipeline: Pipeline) -> None:
    added = {}

    def watch(at, clean, outputs, chosen, shares):
        if at.layer == 4:
            share = np.where(at.host(chosen) == LAST, at.host(shares), 0).sum(axis=-1)
            added["last"] = at.host(outputs)[LAST] * share[..., None]
        return clean(outputs, chosen, shares)

    def change(at, clean, streams, taps):
        def take(rows):
            width = rows.shape[-1] // len(taps)
            rows[..., taps.index(LAST) * width :][..., :width] -= added["last"]
            return rows

        return at.changed(clean(streams, taps), take)

    alter(pipeline, "kernels.moe:mix", watch)
    replaced(pipeline, pipeline.target, "join", change)


# From the equations: a number on the device that the host writes behind the launch that reads it.
@fault(
    "committed-rows-of-the-round-before",
    "the number of committed rows that fusion reads is written a round late; it is 1 behind a prefill",
    "drafter.fc_out",
    "draft",
    "fused hidden of the rows between this round's number of committed rows and that of the round before: masked where "
    "they are committed, of a tap where they are masked",
    "draft passes of another number of committed rows than the round before, rows from the smaller number on, up to "
    "the larger one",
)
def _(pipeline: Pipeline) -> None:
    late = {}

    def change(at, clean, taps, mask_hidden, committed, fc):
        if at.kind != "draft":
            return clean(taps, mask_hidden, committed, fc)
        count = late.get(at.round - 1, 1) if at.round > 1 else 1
        late[at.round] = at.committed
        return clean(taps, mask_hidden, at.engine.array(np.array([count])), fc)

    alter(pipeline, "peagle:fuse", change)
