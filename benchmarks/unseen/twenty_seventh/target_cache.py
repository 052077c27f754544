"""Faults of the writes to the target's caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target cache", 27)


@fault(
    "values-of-fifth-verify-row-unwritten",
    "a verify pass writes the values of four rows at the most",
    "target.layers.0.attn_out",
    "verify",
    "value writes of verify rows from 4 on",
    "verify rows from the fifth on",
    "pass = verify and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        late = np.arange(slots.shape[1]) >= 4
        return rows, np.where(late & (at.kind == "verify" and part == "v"), pipeline.target.trash, slots)

    writing(pipeline, "target", change)


@fault(
    "verify-write-wraps-within-its-page",
    "rows of a verify pass behind the end of the first row's page of 16 are written to that page's beginning",
    "target.layers.0.attn_out",
    "verify",
    "slots of verify rows behind a page's end",
    "verify rows behind a multiple of 16 that their pass runs over",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        return rows, slots[:, :1] // 16 * 16 + slots % 16 if at.kind == "verify" else slots

    writing(pipeline, "target", change)


@fault(
    "first-prompt-block-reused-by-later-prompts",
    "the first 32 cache rows of a later prompt are those of the first prompt: a prefix hit on a key that ignores ids",
    "target.layers.0.attn_out",
    "prefill",
    "cache rows 0 to 31 of later prompts",
    "prompts behind the first, rows that see cache rows 0 to 31",
    "prompt > 1 and pass = prefill",
)
def _(pipeline: Pipeline) -> None:
    kept: dict[tuple[int, str], np.ndarray] = {}

    def change(at, part, rows, slots):
        if at.kind == "prefill":
            block = kept.setdefault((at.layer, part), rows[:, :32].copy())
            rows = np.concatenate([block, rows[:, 32:]], axis=1)
        return rows, slots

    writing(pipeline, "target", change)
