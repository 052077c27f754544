"""Second set: faults of the caches."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 2)


@fault(
    "new-page-not-yet-mapped",
    "a verify row that begins a page of 8 is written to the start of the page before in layer 4",
    "target.layers.4.attn_out",
    "verify",
    "slots that layer 4's caches are written at",
    "verify passes that reach a multiple of 8: rows there and behind, and rows that see the page before; layer 4",
    "pass = verify and layer = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.layer == 4 and at.kind == "verify":
            slots = np.where(slots % 8 == 0, slots - 8, slots)
        return rows, slots

    writing(pipeline, "target", change)


@fault(
    "rollback-clears-the-page",
    "the commit of a round that accepts nothing clears the values of the whole last page of 16 in layer 2",
    "kv.target.2.v",
    "commit",
    "value cache of layer 2, the last page",
    "commits of rounds that accept nothing, rows from the last multiple of 16 on",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        one_more = at.kind == "commit" and length - pipeline.target.length == 1
        clean(length)
        if one_more:
            pipeline.target.caches[2][1][:, length - length % 16 :] = 0.0

    replaced(pipeline, pipeline.target, "rollback", change)


@fault(
    "drafter-values-rounded",
    "the drafter's values of layer 1 are kept in bfloat16",
    "drafter.layers.1.attn_out",
    "prefill",
    "value cache of the drafter's layer 1",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        narrow = at.layer == 1 and part == "v"
        return (rows.astype(bfloat16).astype(np.float32) if narrow else rows), slots

    writing(pipeline, "drafter", change)


@fault(
    "late-rows-write-groups-exchanged",
    "prefill rows from 64 on write the keys of kv groups 0 and 1 in each other's place in the drafter's layer 2",
    "drafter.layers.2.attn_out",
    "prefill",
    "key cache of kv groups 0 and 1 of the drafter's layer 2",
    "prefill rows from 64 on, layer 2",
    "pass = prefill and position >= 64 and layer = 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.layer == 2 and part == "k" and at.kind == "prefill":
            rows[:, 64:] = rows[:, 64:][:, :, [1, 0, 2, 3]]
        return rows, slots

    writing(pipeline, "drafter", change)
