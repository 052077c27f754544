"""Faults of the caches: writes of a draft pass, commit and rollback."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 20)
PAGE = 16


@fault(
    "draft-loses-first-row-of-page",
    "a draft pass that comes to a new page of 16 rows finds none allocated for its first row, which goes to the trash",
    "drafter.layers.0.attn_out",
    "draft",
    "the drafter's keys and values at the first row of a page, in every layer",
    "draft passes, rows whose position is a multiple of 16, and rows that see them",
    "pass = draft and position % 16 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "draft":
            slots = np.where(slots % PAGE == 0, pipeline.drafter.trash, slots)
        return rows, slots

    writing(pipeline, "drafter", change)


@fault(
    "rejection-frees-whole-page",
    "a round that accepts no draft frees the page of 16 rows that the drafter's cache ends in: its rows are cleared",
    "kv.drafter.0.k",
    "commit",
    "committed rows of the drafter's last page, keys and values of every layer",
    "commits of rounds that accept no draft",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        clean(length)
        if at.kind == "commit" and len(pipeline._emitted) == 1:
            for one in (one for pair in pipeline.drafter.caches for one in pair):
                one[:, length // PAGE * PAGE : length] = np.zeros((), np.float32)

    replaced(pipeline, pipeline.drafter, "rollback", change)


@fault(
    "third-accepted-key-copied",
    "commit moves at most three rows: from three accepted drafts on the last key of layer 4 repeats the one before",
    "kv.target.4.k",
    "commit",
    "the last committed key of the target's layer 4",
    "commits of rounds that accept three drafts or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        clean(length)
        if at.kind == "commit" and len(pipeline._emitted) >= 4:
            keys, _ = pipeline.target.caches[4]
            keys[:, length - 1 : length] = at.array(at.host(keys)[:, length - 2 : length - 1], keys)

    replaced(pipeline, pipeline.target, "rollback", change)
