"""Twelfth set: faults of the drafter's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft attention", 12)
ATTEND = "kernels.drafter_layer:attend"


# Of the class of https://github.com/ggml-org/llama.cpp/issues/24912: how many tiles of keys a tile of queries visits.
@fault(
    "keys-counted-for-a-tile-s-first-row",
    "a tile of 32 query rows visits as many tiles of 16 keys as its first row sees",
    "drafter.layers.0.attn_out",
    "prefill",
    "the mask of every drafter layer in prefills: keys 16 to 31 of a tile of 32 are not seen by rows of the same tile",
    "prefill rows in the second half of a tile of 32",
    "pass = prefill and position % 32 >= 16",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        if at.kind == "prefill":
            end = np.where(at.positions < pipeline.drafter.trash, at.positions // 32 * 32 + 16, 16)
            seen = at.engine.array(at.host(seen) & (np.arange(seen.shape[-1]) < end[:, None]))
        return clean(q, keys, values, seen)

    alter(pipeline, ATTEND, change)


# Of the class of https://github.com/vllm-project/vllm/issues/41162: lengths that a captured graph keeps.
@fault(
    "length-of-the-captured-draft",
    "a draft pass is captured in round 1 with its cache's length, and later ones see as many cached rows and their own",
    "drafter.layers.0.attn_out",
    "draft",
    "the mask of every drafter layer in draft passes: keys between round 1's cached rows and the pass are not seen",
    "draft passes from round 2 on",
    "pass = draft and round >= 2",
)
def _(pipeline: Pipeline) -> None:
    captured = {}

    def change(at, clean, q, keys, values, seen):
        if at.kind == "draft":
            first = int(at.positions[0])
            captured.setdefault(at.prompt, first)
            key = np.arange(seen.shape[-1])
            seen = at.engine.array(at.host(seen) & ((key < captured[at.prompt]) | (key >= first)))
        return clean(q, keys, values, seen)

    alter(pipeline, ATTEND, change)
