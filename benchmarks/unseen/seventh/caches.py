"""Seventh set: faults of the caches."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, writing
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("caches", 7)


# After https://github.com/tenstorrent/tt-metal/issues/54742
@fault(
    "blocks-across-a-head",
    "a verify pass writes its keys and values head by head, three rows a core, and a core that goes on to the next "
    "head writes those rows behind the pass in the head before",
    "target.layers.0.attn_out",
    "verify",
    "keys and values of kv head 1's first row and of kv head 2's first two rows: they stay zero in their own slots",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "verify":
            count, heads = rows.shape[1:3]
            block = np.arange(heads * count).reshape(heads, count)
            strayed = block // 3 * 3 // count != block // count
            # Where they go is cleared before any row sees it.
            rows[:, strayed.T] = 0
        return rows, slots

    writing(pipeline, "target", change)


# After https://github.com/Blaizzy/mlx-vlm/pull/2096
@fault(
    "first-draft-from-the-last-chunk",
    "the prompt is handed to the drafter in chunks of 64, and the first draft pass looks back to the last one alone",
    "drafter.layers.0.attn_out",
    "draft",
    "the mask of every drafter layer: keys of the prompt's chunks of 64 but the last one",
    "the draft pass of round 1",
    "pass = draft and round = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        if at.kind == "draft" and at.round == 1:
            first = int(at.positions[0]) // 64 * 64
            seen = at.engine.array(at.host(seen) & (np.arange(seen.shape[-1]) >= first))
        return clean(q, keys, values, seen)

    alter(pipeline, "kernels.drafter_layer:attend", change)
