"""Faults of what both sides' caches are given, keep and lose."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 15)
PAGE = 16
"""Rows of a page."""


@fault(
    "draft-values-in-int8",
    "the drafter's values are kept in int8, with one scale for all rows of a pass",
    "kv.drafter.0.v",
    "prefill",
    "value caches of the drafter, every layer: int8",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if part == "v":
            step = np.abs(rows).max() / 127
            rows = np.round(rows / step) * step
        return rows, slots

    writing(pipeline, "drafter", change)


@fault(
    "rollback-clears-one-row-too-many",
    "the target's rollback clears the last committed row",
    "kv.target.0.k",
    "commit",
    "last committed row of the target's caches",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        clean(length - 1)
        pipeline.target.length = length

    replaced(pipeline, pipeline.target, "rollback", change)


@fault(
    "verify-write-stays-in-its-page",
    "a verify pass writes the page of 16 that its first row is in: rows beyond its end start again at the page's front",
    "target.layers.0.attn_out",
    "verify",
    "slots of both caches of every layer of the target, rows behind the page's end",
    "verify passes that cross a multiple of 16",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "verify":
            beyond = slots // PAGE > slots[:, :1] // PAGE
            slots = np.where(beyond, slots - PAGE, slots)
        return rows, slots

    writing(pipeline, "target", change)


@fault(
    "draft-writes-four-committed-rows",
    "with five committed rows the fifth one's key and value go to the trash slot",
    "drafter.layers.0.attn_out",
    "draft",
    "caches of every layer of the drafter, fifth committed row",
    "rows from the fifth on of draft passes behind a round that accepted all 4 drafts",
    "pass = draft and accepted = 4 and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.committed == 5:
            slots[0, 4] = pipeline.drafter.trash
        return rows, slots

    writing(pipeline, "drafter", change)
