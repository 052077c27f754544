"""Faults of the writes to the target's cache."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target cache", 24)
OUT = "target.layers.0.attn_out"
PAGE = 16
"""Rows of a page."""


@fault(
    "draft-row-opening-page-not-stored",
    "a verify row behind the pass' first one that opens a page of 16 rows is not written",
    OUT,
    "verify",
    "keys and values of the first row of a new page",
    "verify rows behind the first one at positions that open a page; rows behind them see the hole",
    "pass = verify and row > 0 and position % 16 = 0",
)
def _(pipeline: Pipeline) -> None:
    trash = pipeline.target.trash

    def change(at, part, rows, slots):
        later = np.arange(slots.shape[1]) > 0
        return rows, np.where((at.kind == "verify") & later & (slots % PAGE == 0), trash, slots)

    writing(pipeline, "target", change)


@fault(
    "last-prompt-value-of-open-page",
    "the value of a prompt's last row is not written where it lies within a page of 16 rows",
    OUT,
    "prefill",
    "value of the prompt's last row",
    "the last row of a prompt whose length is no multiple of 16",
)
def _(pipeline: Pipeline) -> None:
    trash = pipeline.target.trash

    def change(at, part, rows, slots):
        real = slots[slots != trash]
        last = real.max() if len(real) else 0
        if part == "k" or at.kind != "prefill" or (last + 1) % PAGE == 0:
            return rows, slots
        return rows, np.where(slots == last, trash, slots)

    writing(pipeline, "target", change)


@fault(
    "rejected-draft-row-deemed-already-filled",
    "behind a round that accepted no draft the first row's slot is deemed filled and keeps the rejected draft's row",
    OUT,
    "verify",
    "keys and values in the slot of the pass' first row",
    "verify passes behind a round that accepted nothing",
    "pass = verify and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    kept = {}

    def change(at, part, rows, slots):
        if at.kind != "verify":
            return rows, slots
        mine = rows.copy()
        before = kept.get((at.layer, part))
        if at.accepted == 0 and before is not None:
            mine[:, 0] = before
        if rows.shape[1] > 1:
            kept[at.layer, part] = rows[:, 1].copy()
        return mine, slots

    writing(pipeline, "target", change)
