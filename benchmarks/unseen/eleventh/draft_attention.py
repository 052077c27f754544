"""Eleventh set: faults of the drafter's attention."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft attention", 11)
ATTEND = "kernels.drafter_layer:attend"


# After https://github.com/FlashML-org/FreeToken/pull/177: tiles of heads that do not end with a group.
@fault(
    "heads-counted-across-groups",
    "query heads come in tiles of two, two tiles a kv head, where a group has three heads",
    "drafter.layers.0.attn_out",
    "prefill",
    "kv head of the query heads in every drafter layer: head h reads kv head h div 4, where h div 3 is meant",
)
def _(pipeline: Pipeline) -> None:
    mine = np.arange(pipeline.drafter.config.attention.heads) // 4

    def change(at, clean, q, keys, values, seen):
        keys, values = (at.changed(part, lambda rows: rows[:, :, mine]) for part in (keys, values))
        return clean(q, keys, values, seen)

    alter(pipeline, ATTEND, change)


# Of FlashAttention 2.1's change of the corner that a causal mask is aligned to.
@fault(
    "mask-aligned-to-the-top-left",
    "a library's causal mask begins with the first key, whatever the cache holds in front of a pass",
    "drafter.layers.0.attn_out",
    "draft",
    "the mask of every drafter layer in draft passes: row r sees keys 0 to r",
    "draft passes",
    "pass = draft",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        if at.kind == "draft":
            row, key = np.arange(seen.shape[1])[:, None], np.arange(seen.shape[2])
            seen = at.engine.array((key <= row)[None])
        return clean(q, keys, values, seen)

    alter(pipeline, ATTEND, change)


# Of the class of https://github.com/vllm-project/speculators/pull/897: ones of a mask that is added to scores.
@fault(
    "own-key-one-higher",
    "the mask of masked rows among themselves has ones and zeros, and its ones are added to scores",
    "drafter.layers.0.attn_out",
    "draft",
    "scores of every drafter layer: a masked row's own key has 1 more",
    "masked rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        if sink is not None or at.kind != "draft":
            return clean(x, sink)
        rows = at.committed + np.arange(at.masked)

        def lift(scores):
            scores[..., rows, at.positions[rows]] += 1
            return scores

        return clean(at.changed(x, lift))

    alter(pipeline, "kernels.attention:softmax", change)
