"""Ninth set: faults of taps and of their fusion."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("taps", 9)


# From the equations: a matrix that is loaded in three parts, and two parts with one name.
@fault(
    "fc-part-loaded-twice",
    "fc is loaded in three parts, one a tap, and the second tap has the first one's",
    "drafter.fc_out",
    "prefill",
    "fc's inputs 96 to 191: the weights of inputs 0 to 95",
)
def _(pipeline: Pipeline) -> None:
    def repeat(weight):
        weight[96:192] = weight[:96]
        return weight

    rewritten(pipeline, pipeline.drafter.outer, "fc", repeat)


# Of the class of https://github.com/sgl-project/sglang/pull/10801: what is handed over in front of the first draft.
@fault(
    "first-draft-from-the-prompt-before",
    "the taps of a prompt's last row are kept for the first draft by row number, and a later prompt finds what the one "
    "before left there",
    "drafter.taps",
    "draft",
    "taps of the first draft's committed row: those of the same row of the prompt before",
    "the draft of round 1, from the second prompt on",
    "pass = draft and round = 1 and prompt >= 2",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, streams, taps):
        made = clean(streams, taps)
        if at.kind != "prefill":
            return made
        last = int((at.positions < pipeline.target.trash).sum()) - 1
        held[at.prompt] = at.host(made)[0]

        def keep(rows):
            rows[0, last] = held[at.prompt - 1][last]
            return rows

        return at.changed(made, keep) if at.prompt > 1 else made

    replaced(pipeline, pipeline.target, "join", change)


# From the equations: split over inputs, and a partial sum that is cleared once a launch.
@fault(
    "second-tile-adds-the-third-tap",
    "fc takes draft rows in tiles of four, tap after tap, and the third tap's sums of the first tile are not cleared "
    "for the second one",
    "drafter.fc_out",
    "draft",
    "fused hidden of rows 4 and 5 and so on: the third tap's part of the row four before is added to it",
    "rows of draft passes from 4 on",
    "pass = draft and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, mask_hidden, committed, fc):
        made = clean(taps, mask_hidden, committed, fc)
        if at.kind != "draft":
            return made
        known = (np.arange(taps.shape[1]) < at.committed)[:, None]
        third = np.where(known, at.host(taps), at.host(mask_hidden))[..., 192:] @ at.host(fc)[192:]

        def add(rows):
            rows[:, 4:] += third[:, : rows.shape[1] - 4]
            return rows

        return at.changed(made, add)

    alter(pipeline, "peagle:fuse", change)


# From the equations: a buffer between two models, in the dtype of the checkpoint.
@fault(
    "taps-in-bfloat16",
    "taps are handed over in a buffer of bfloat16",
    "drafter.taps",
    "prefill",
    "all three taps: rounded to bfloat16",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        return at.changed(clean(streams, taps), lambda rows: rows.astype(ml_dtypes.bfloat16).astype(np.float32))

    replaced(pipeline, pipeline.target, "join", change)


# From the equations: a mask for training's loss, which leaves the template's tokens out.
@fault(
    "special-rows-without-taps",
    "taps are multiplied by the mask that training takes for its loss, which is 0 at special tokens",
    "drafter.taps",
    "prefill",
    "all three taps of a row whose own token is a special one, 1264 or more: zero",
    "rows whose own token is 1264 or more",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def watch(at, clean, rows):
        held["ids"] = rows.ids[0]
        return clean(rows)

    def change(at, clean, streams, taps):
        def mask(rows):
            rows[0, held["ids"] >= 1264] = 0
            return rows

        return at.changed(clean(streams, taps), mask)

    replaced(pipeline, pipeline.target, "embedded", watch)
    replaced(pipeline, pipeline.target, "join", change)
