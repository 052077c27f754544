"""Faults of what caches are given, keep and lose."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 16)
PAGE = 8


@fault(
    "verify-write-wraps-in-its-page",
    "a verify pass writes into the page of 8 that its first row lies in, rows behind the page's end to its start",
    "target.layers.0.attn_out",
    "verify",
    "slots of the target's cache writes in every layer",
    "verify passes that cross a multiple of 8, rows from that multiple on",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "verify":
            over = (slots // PAGE > slots[:, :1] // PAGE) & (slots < pipeline.target.trash)
            slots = np.where(over, slots - PAGE, slots)
        return rows, slots

    writing(pipeline, "target", change)


@fault(
    "sliding-layers-share-a-cache",
    "layers 2 and 6, both sliding, were given the same cache buffer",
    "kv.target.2.k",
    "prefill",
    "caches of layers 2 and 6",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        clean(*given)
        pipeline.target.caches[6] = pipeline.target.caches[2]

    for method in ("clear", "rollback"):
        replaced(pipeline, pipeline.target, method, change)


@fault(
    "drafter-cropped-one-short",
    "the drafter's caches are cropped to one row less than the length that is kept",
    "kv.drafter.0.k",
    "commit",
    "last kept row of the drafter's caches in every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        clean(length)
        if at.kind == "commit":
            for one in (one for pair in pipeline.drafter.caches for one in pair):
                one[:, length - 1] = 0.0

    replaced(pipeline, pipeline.drafter, "rollback", change)


@fault(
    "masked-rows-kept-behind-full-accept",
    "behind a round that accepted every draft the drafter keeps what masked rows cached, accepted rows are not written",
    "drafter.layers.0.attn_out",
    "draft",
    "caches of the drafter in every layer, rows that were masked ones",
    "committed rows whose slot a masked row wrote, behind a round that accepted all 4 drafts",
    "pass = draft and accepted = 4",
)
def _(pipeline: Pipeline) -> None:
    left = {}

    def change(at, part, rows, slots):
        before = left.pop((at.layer, part), {})
        if at.kind == "draft":
            masked = range(at.committed, at.committed + at.masked)
            left[at.layer, part] = {int(slots[0, row]): rows[:, row].copy() for row in masked}
        if at.kind == "draft" and at.accepted == 4:
            for row in range(at.committed):
                rows[:, row] = before.get(int(slots[0, row]), rows[:, row])
        return rows, slots

    writing(pipeline, "drafter", change)


@fault(
    "draft-padding-writes-slot-0",
    "padding rows of a draft pass write slot 0 of the drafter's caches",
    "drafter.layers.0.attn_out",
    "draft",
    "row 0 of the drafter's caches in every layer",
    "draft passes with fewer than 5 committed rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        return rows, np.where(slots == pipeline.drafter.trash, 0, slots) if at.kind == "draft" else slots

    writing(pipeline, "drafter", change)
