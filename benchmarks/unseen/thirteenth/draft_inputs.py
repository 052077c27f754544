"""Thirteenth set: faults of ids, positions and slots of draft passes."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft inputs", 13)


# Of the class of https://github.com/llmmanorg/llmman/pull/198: positions of a draft, counted by its steps.
@fault(
    "masked-positions-from-zero",
    "positions of masked rows are their depth, 0, 1 and 2",
    "drafter.positions",
    "draft",
    "positions of masked rows: counted from 0 on; slots are right",
    "masked rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        made, positions, slots = clean(ids, others)
        if at.kind == "draft":
            positions[len(ids) :] = np.arange(others)
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


# From the equations: rows that go at the end of a round, and pages that are given out whole.
@fault(
    "masked-slots-on-a-page-of-their-own",
    "masked rows are written to a fresh page of 16 slots, which goes back as a whole behind the round",
    "drafter.slots",
    "draft",
    "slots of masked rows: from the next multiple of 16 on; positions are right",
    "masked rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        made, positions, slots = clean(ids, others)
        if at.kind == "draft":
            slots[len(ids) :] += -slots[len(ids)] % 16
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


# From the equations: a family of placeholders, of which this drafter has learnt one.
@fault(
    "a-placeholder-for-each-depth",
    "masked rows have ids of their depth: the placeholder, and the ids behind it",
    "drafter.input_ids",
    "draft",
    "ids of masked rows but the first: 1276 and 1277, where 1275 is meant",
    "masked rows but the first",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        made, positions, slots = clean(ids, others)
        if at.kind == "draft":
            made[len(ids) :] += np.arange(others)
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)
