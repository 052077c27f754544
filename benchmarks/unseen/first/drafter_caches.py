"""Faults of what the drafter's caches are given and keep."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e5m2

from benchmarks.unseen.moments import writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches")


@fault(
    "masked-values-stay",
    "a committed row keeps the value that a masked row left in its slot in layer 2",
    "drafter.layers.2.attn_out",
    "draft",
    "value cache of layer 2",
    "committed rows whose slot a masked row of the round before wrote, layer 2",
)
def _(pipeline: Pipeline) -> None:
    left = {}

    def change(at, part, rows, slots):
        if at.layer != 2 or part != "v":
            return rows, slots
        for row in range(at.committed):
            rows[:, row] = left.pop(int(slots[0, row]), rows[:, row])
        left.clear()
        for row in range(at.committed, at.committed + at.masked):
            left[int(slots[0, row])] = rows[:, row].copy()
        return rows, slots

    writing(pipeline, "drafter", change)


@fault(
    "first-page-of-prompt-before",
    "from the second prompt on the first 16 rows of layer 0 stay the first prompt's",
    "drafter.layers.0.attn_out",
    "prefill",
    "first 16 rows of layer 0's caches",
    "prefills from the second prompt on, layer 0",
    "prompt > 1 and layer = 0",
)
def _(pipeline: Pipeline) -> None:
    kept = {}

    def change(at, part, rows, slots):
        if at.layer == 0 and at.kind == "prefill":
            first = kept.setdefault(part, rows[:, :16].copy())
            rows[:, :16] = first
        return rows, slots

    writing(pipeline, "drafter", change)


@fault(
    "late-values-in-eighths",
    "the drafter's values at positions from 128 on are kept in fp8 (e5m2)",
    "kv.drafter.0.v",
    "prefill",
    "value caches of every layer",
    "values at positions from 128 on; the rows that see one",
    "position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if part == "v":
            late = slots[..., None, None] >= 128
            rows = np.where(late, rows.astype(float8_e5m2).astype(np.float32), rows)
        return rows, slots

    writing(pipeline, "drafter", change)


@fault(
    "groups-2-and-3-share-rows",
    "layer 3's kv group 2 is overwritten by group 3",
    "drafter.layers.3.attn_out",
    "prefill",
    "caches of kv group 2 of layer 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.layer == 3:
            rows[:, :, 2] = rows[:, :, 3]
        return rows, slots

    writing(pipeline, "drafter", change)
