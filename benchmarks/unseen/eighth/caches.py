"""Eighth set: faults of the caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 8)


# From the equations: a store of two rows, and a count that is halved.
@fault(
    "rows-stored-in-pairs",
    "the drafter's keys and values are stored two rows at a time, and the last of an odd number of rows is not",
    "drafter.layers.0.attn_out",
    "prefill",
    "key and value of a pass' last row in every drafter layer: they stay zero",
    "the last row of passes of an odd number of rows: of prefills of 129 and 97, and of drafts behind a round that "
    "accepted one draft or three",
)
def _(pipeline: Pipeline) -> None:
    trash = pipeline.drafter.trash

    def change(at, part, rows, slots):
        count = int((slots != trash).sum())
        if count % 2:
            slots[0, count - 1] = trash
        return rows, slots

    writing(pipeline, "drafter", change)


# After https://github.com/Blaizzy/mlx-vlm/issues/1715: reuse of another text's rows, here of one too many.
@fault(
    "shared-beginning-a-row-too-long",
    "rows that a prompt shares with the one before are kept, and so is the first that it does not share",
    "target.layers.0.attn_out",
    "prefill",
    "key and value of row 4 in every target layer: those of the prompt before, with which four ids are shared",
    "the second prompt and those behind it, rows that see row 4: from 4 on, in even layers to 35",
)
def _(pipeline: Pipeline) -> None:
    texts: list[np.ndarray] = [np.empty(0, int)]
    rows_of: dict[tuple[int, str], np.ndarray] = {}

    def begin(at, clean, prompt_ids, *rest):
        texts[:] = [texts[-1], np.asarray(prompt_ids)]
        return clean(prompt_ids, *rest)

    def change(at, part, rows, slots):
        if at.kind != "prefill":
            return rows, slots
        most = min(map(len, texts))
        same = int(np.cumprod(texts[0][:most] == texts[1][:most]).sum())
        right, stale = rows.copy(), rows_of.get((at.layer, part))
        if stale is not None and same < most:
            rows[:, same] = stale[:, same]
        rows_of[at.layer, part] = right
        return rows, slots

    replaced(pipeline, pipeline, "prefill", begin)
    writing(pipeline, "target", change)
