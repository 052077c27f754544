"""Faults of the caches: writes, pages, what a commit keeps."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 23)
FIRST = "drafter.layers.0.attn_out"
PAGE = 16
"""Rows of a page."""


@fault(
    "fifth-page-reads-the-fourth",
    "behind 128 rows the drafter's page table is laid out anew, and its fifth page is the fourth once more",
    FIRST,
    "draft",
    "keys and values that attention reads for the positions 64 to 79: those of 48 to 63",
    "draft passes that begin behind more than 128 rows of the drafter's cache",
    "pass = draft and cached > 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, *rest):
        if at.kind != "draft" or pipeline.drafter.length <= 128:
            return clean(q, keys, values, *rest)

        def doubled(value):
            value[:, 4 * PAGE : 5 * PAGE] = value[:, 3 * PAGE : 4 * PAGE].copy()
            return value

        return clean(q, at.changed(keys, doubled), at.changed(values, doubled), *rest)

    alter(pipeline, "kernels.drafter_layer:attend", change)


@fault(
    "page-end-value-not-written",
    "a draft pass does not write the values of a page's last row, whose slot belongs to a page not yet reserved",
    FIRST,
    "draft",
    "values of the last row of each page of 16 rows",
    "draft rows at positions 15, 31, 47 and so on, and those of the same pass that see them",
    "pass = draft and position % 16 = 15",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if part == "v" and at.kind == "draft":
            slots = np.where(slots % PAGE == PAGE - 1, pipeline.drafter.trash, slots)
        return rows, slots

    writing(pipeline, "drafter", change)


@fault(
    "full-page-freed-by-commit",
    "a commit that leaves a multiple of 8 rows in the drafter's cache frees its last page: 8 rows are cleared",
    "kv.drafter.0.k",
    "commit",
    "the last 8 rows of the drafter's keys and values in every layer",
    "commits behind which the drafter's cache holds a multiple of 8 rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        page = 8
        if at.kind == "commit" and length % page == 0:
            clean(length - page)
            pipeline.drafter.length = length
        else:
            clean(length)

    replaced(pipeline, pipeline.drafter, "rollback", change)
