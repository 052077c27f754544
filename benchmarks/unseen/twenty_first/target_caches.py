"""Faults of the target's key and value caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches of the target", 21)
OUT = "target.layers.0.attn_out"
PAGE, STEP = 16, 8 / 127


@fault(
    "values-cached-in-int8",
    "values are cached as int8 of one calibrated scale, 8 over 127",
    OUT,
    "prefill",
    "value cache of every layer: its dtype",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        return np.clip(np.round(rows / STEP), -127, 127) * np.float32(STEP) if part == "v" else rows, slots

    writing(pipeline, "target", change)


@fault(
    "row-that-opens-a-page-lost",
    "a page of 16 is allocated behind the write of a verify pass: the row that opens one is lost",
    OUT,
    "verify",
    "key and value of the row that opens a page, in every layer",
    "verify rows at positions that are multiples of 16",
    "pass = verify and position % 16 = 0",
)
def _(pipeline: Pipeline) -> None:
    trash = pipeline.target.trash

    def change(at, part, rows, slots):
        return rows, np.where(slots % PAGE == 0, trash, slots) if at.kind == "verify" else slots

    writing(pipeline, "target", change)


@fault(
    "bonus-row-taken-for-written",
    "behind a round that accepted every draft the bonus token's row is taken for written: its slot stays empty",
    OUT,
    "verify",
    "key and value of the first row of a verify pass in every layer",
    "verify passes behind a round that accepted all 4 drafts",
    "pass = verify and accepted = 4",
)
def _(pipeline: Pipeline) -> None:
    trash = pipeline.target.trash

    def change(at, part, rows, slots):
        if at.kind == "verify" and at.accepted == 4:
            slots = slots.copy()
            slots[:, 0] = trash
        return rows, slots

    writing(pipeline, "target", change)
