"""Faults of the target's caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target caches", 20)
PAGE = 16


@fault(
    "values-stored-transposed",
    "sliding layers store a row's values element by element and read them head by head",
    "target.layers.0.attn_out",
    "prefill",
    "value cache of layers 0, 2, 4, 6: heads and elements of a row transposed",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if part == "v" and pipeline.target.windows[at.layer] is not None:
            rows = rows.swapaxes(-1, -2).reshape(rows.shape)
        return rows, slots

    writing(pipeline, "target", change)


@fault(
    "verify-write-stays-in-page",
    "a verify pass looks up one page of 16 slots, that of its first row: rows behind its end go to its beginning",
    "target.layers.0.attn_out",
    "verify",
    "slots of keys and values: 16 too small",
    "verify rows behind a multiple of 16 that their pass crosses",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        return rows, slots[:, :1] // PAGE * PAGE + slots % PAGE if at.kind == "verify" else slots

    writing(pipeline, "target", change)


@fault(
    "page-of-prompt-before",
    "the second page of 16 rows of every other prompt is taken for one in the prefix cache: that of the prompt before",
    "target.layers.0.attn_out",
    "prefill",
    "keys and values of rows 16 to 31: those of the prompt before",
    "prefill rows from 16 on of every second prompt",
    "pass = prefill and prompt % 2 = 0 and row >= 16",
)
def _(pipeline: Pipeline) -> None:
    kept: dict[tuple[int, str], np.ndarray] = {}

    def change(at, part, rows, slots):
        if at.kind == "prefill":
            page, before = rows[:, PAGE : 2 * PAGE].copy(), kept.get((at.layer, part))
            if at.prompt % 2 == 0 and before is not None:
                rows[:, PAGE : 2 * PAGE] = before
            kept[at.layer, part] = page
        return rows, slots

    writing(pipeline, "target", change)
