"""Thirteenth set: faults of the drafter's caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft caches", 13)


# From the equations: slots in integers that are too small for them.
@fault(
    "slots-in-eight-bits",
    "slots are handed over in signed integers of eight bits, and a write to a negative one goes nowhere",
    "drafter.layers.0.attn_out",
    "prefill",
    "keys and values of every drafter layer from slot 128 on: they stay zero",
    "rows at positions from 128 on",
    "position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        return rows, np.where(slots >= 128, pipeline.drafter.trash, slots).astype(slots.dtype)

    writing(pipeline, "drafter", change)


# Of the class of https://github.com/ohdearquant/lattice/issues/1396: an accepted draft that never has a row.
@fault(
    "no-row-for-the-last-accepted-draft",
    "behind a round that accepted everything the last draft's row is skipped, as no draft followed it",
    "drafter.layers.0.attn_out",
    "draft",
    "key and value of committed row 3 in every drafter layer: they stay zero",
    "draft passes behind a round that accepted all 4 drafts, rows from 3 on",
    "pass = draft and accepted = 4 and row >= 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "draft" and at.accepted == pipeline.k:
            slots[0, 3] = pipeline.drafter.trash
        return rows, slots

    writing(pipeline, "drafter", change)
