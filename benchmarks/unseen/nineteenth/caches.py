"""Faults of the caches of drafter and target, and of what a commit keeps in them."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 19)
PAGE = 16


@fault(
    "last-head-read-before-written",
    "in layer 2 attention does not wait for the write of the last kv head's values: rows of the pass are still zero",
    "drafter.layers.2.attn_out",
    "prefill",
    "values of kv head 3 of drafter layer 2 in the rows of the running pass",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, *rest):
        if at.layer != 2:
            return clean(q, keys, values, *rest)
        early = at.host(values)
        early[:, at.positions[at.positions < early.shape[1]], -1] = 0
        return clean(q, keys, at.array(early, values), *rest)

    alter(pipeline, "kernels.drafter_layer:attend", change)


@fault(
    "rows-of-next-page-to-trash",
    "a draft knows the page of its first row alone: rows of the next page of 16 write the trash slot",
    "drafter.layers.0.attn_out",
    "draft",
    "slots of the drafter's keys and values in rows of another page than the first row's",
    "rows of a draft pass in a later page of 16 than its first row",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        later = slots // PAGE > slots[:, :1] // PAGE
        return rows, np.where(later, pipeline.drafter.trash, slots) if at.kind == "draft" else slots

    writing(pipeline, "drafter", change)


@fault(
    "kept-values-one-row-late",
    "what a commit keeps of the drafter's values is gathered one row late: each row has those of the row behind it",
    "kv.drafter.0.v",
    "commit",
    "source rows of the values that a commit keeps in every drafter layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        start = pipeline.drafter.length
        if at.kind == "commit" and length > start:
            for _, values in pipeline.drafter.caches:
                late = at.host(values)[:, start + 1 : length + 1]
                values[:, start:length] = at.array(late, values)
        clean(length)

    replaced(pipeline, pipeline.drafter, "rollback", change)


@fault(
    "first-row-of-page-not-kept",
    "a page of 16 is allocated late in a commit: its first row is lost",
    "kv.target.0.k",
    "commit",
    "the target's keys and values of a committed row that begins a page",
    "rows that a round commits at a position that is a multiple of 16",
    "pass = verify and position % 16 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        start = pipeline.target.length
        clean(length)
        if at.kind != "commit":
            return
        for row in (row for row in range(start, length) if row % PAGE == 0):
            for held in (one for pair in pipeline.target.caches for one in pair):
                held[:, row : row + 1] = at.array(np.zeros((1, 1, 1, 1), np.float32), held)

    replaced(pipeline, pipeline.target, "rollback", change)
