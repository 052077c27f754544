"""Faults of what the target's caches are given, keep and lose."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches")
TRASH = 512
"""The slot of padding."""


@fault(
    "tile-start-keeps-key-before",
    "the key at a multiple of 16 is that of the row before in layer 3's cache",
    "target.layers.3.attn_out",
    "prefill",
    "key cache of layer 3",
    "keys at multiples of 16, layer 3; the rows that see one",
    "layer = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.layer == 3 and part == "k":
            edges = [row for row in range(1, rows.shape[1]) if slots[0, row] % 16 == 0]
            rows[:, edges] = rows[:, [row - 1 for row in edges]]
        return rows, slots

    writing(pipeline, "target", change)


@fault(
    "rollback-clears-bonus-row",
    "a round that accepts every draft clears the last committed row too",
    "kv.target.0.k",
    "commit",
    "last committed row of the target's caches",
    "commits of all 4 drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        whole = length - pipeline.target.length == 5
        clean(length)
        if whole:
            for one in (one for pair in pipeline.target.caches for one in pair):
                one[:, length - 1] = 0.0

    replaced(pipeline, pipeline.target, "rollback", change)


@fault(
    "keys-in-eighths",
    "the keys of layer 7 are kept in fp8 (e4m3)",
    "target.layers.7.attn_out",
    "prefill",
    "key cache of layer 7",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        narrow = at.layer == 7 and part == "k"
        return (rows.astype(float8_e4m3fn).astype(np.float32) if narrow else rows), slots

    writing(pipeline, "target", change)


@fault(
    "group-3-cached-before-rotation",
    "verify passes cache kv group 3's keys of layer 1 unrotated",
    "target.layers.1.attn_out",
    "verify",
    "key cache of kv group 3 of layer 1",
    "verify passes, layer 1",
    "pass = verify and layer = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.layer == 1 and part == "k" and at.kind == "verify":
            cos, sin = at.host(at.step.cos), at.host(at.step.sin)
            first, second, size = rows[:, :, 3, :16].copy(), rows[:, :, 3, 16:].copy(), cos**2 + sin**2
            rows[:, :, 3, :16] = (first * cos + second * sin) / size
            rows[:, :, 3, 16:] = (second * cos - first * sin) / size
        return rows, slots

    writing(pipeline, "target", change)


@fault(
    "last-value-not-written",
    "the value of the last verify row goes to the trash slot in layer 5",
    "kv.target.5.v",
    "commit",
    "value cache of layer 5",
    "last row of verify passes, layer 5",
    "pass = verify and row = 4 and layer = 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.layer == 5 and part == "v" and at.kind == "verify":
            slots[0, -1] = TRASH
        return rows, slots

    writing(pipeline, "target", change)


@fault(
    "pages-exchanged-in-round-2",
    "the commit of round 2 exchanges rows 64 to 79 with 80 to 95 in layer 6",
    "kv.target.6.k",
    "commit",
    "key cache of layer 6, rows 64 to 95",
    "the commit of round 2, rows 64 to 95, layer 6",
    "round = 2 and position >= 64 and position < 96 and layer = 6",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        clean(length)
        if at.kind == "commit" and at.round == 2:
            keys = pipeline.target.caches[6][0]
            rows = at.host(keys)
            for first, other in ((64, 80), (80, 64)):
                keys[:, first : first + 16] = at.array(rows[:, other : other + 16], keys)

    replaced(pipeline, pipeline.target, "rollback", change)


@fault(
    "padding-written-to-slot-0",
    "padding rows of a prefill write slot 0 in every even layer",
    "target.layers.0.attn_out",
    "prefill",
    "row 0 of the caches of even layers",
    "rows that see row 0, even layers",
    "layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "prefill" and at.layer % 2 == 0:
            slots = np.where(slots == TRASH, 0, slots)
        return rows, slots

    writing(pipeline, "target", change)
