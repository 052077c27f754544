"""Faults of the drafter's embeddings, and of what its rows write and see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("drafter inputs and caches", 21)
FIRST = "drafter.layers.0.attn_out"
PAGE = 16
SPECIAL = 1264
"""The first token id behind the text's own."""


@fault(
    "draft-embedding-in-int8",
    "the drafter's embedding is loaded through int8 with one scale for the whole table",
    FIRST,
    "prefill",
    "the drafter's embedding table",
)
def _(pipeline: Pipeline) -> None:
    def change(value):
        scale = np.abs(value).max() / 127
        return np.round(value / scale) * scale

    edit(pipeline.drafter, "embed", change)


@fault(
    "special-embeddings-at-mean",
    "the drafter's embeddings of special tokens are the mean of all others, as of a table that was just made longer",
    FIRST,
    "prefill",
    "rows of the drafter's embedding from token 1264 on",
    "rows whose token is a special one, id 1264 or above, the placeholder included",
)
def _(pipeline: Pipeline) -> None:
    def change(value):
        value = value.copy()
        value[SPECIAL:] = value[:SPECIAL].mean(axis=0)
        return value

    edit(pipeline.drafter, "embed", change)


@fault(
    "masked-rows-past-page-in-trash",
    "masked rows in a page of 16 that no committed row has reached yet are written to the trash slot",
    "drafter.slots",
    "draft",
    "slots of masked rows",
    "masked rows behind the end of the page of 16 that holds the last committed row",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, positions, slots = clean(ids, others)
        last = positions[len(positions) - others - 1]
        return ids, positions, np.where(positions // PAGE > last // PAGE, pipeline.drafter.trash, slots)

    def drafting(at, clean, ids, others):
        return change(at, clean, ids, others) if others else clean(ids, others)

    replaced(pipeline, pipeline.drafter, "layout", drafting)


@fault(
    "masked-rows-blind-to-masked",
    "a masked row sees the committed rows and itself, and none of the masked rows in front of it",
    FIRST,
    "draft",
    "the mask of masked rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, positions, *rest):
        made = clean(positions, *rest)
        where, first = at.host(positions)[0], at.committed

        def blind(seen):
            for row in range(first, first + at.masked):
                seen[0, row, where[first] : where[row]] = False
            return seen

        return replace(made, seen={None: at.changed(made.seen[None], blind)}) if at.masked else made

    replaced(pipeline, pipeline.drafter, "make_step", change)


@fault(
    "page-start-values-unwritten",
    "in draft passes values at the first slot of a page of 16 are not written in layer 2",
    "drafter.layers.2.attn_out",
    "draft",
    "values of the drafter's layer 2 cache",
    "rows of draft passes that sit at a multiple of 16, and those behind them that see them; layer 2",
    "pass = draft and position % 16 = 0 and layer = 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "draft" and at.layer == 2 and part == "v":
            slots = np.where(slots % PAGE == 0, pipeline.drafter.trash, slots)
        return rows, slots

    writing(pipeline, "drafter", change)
