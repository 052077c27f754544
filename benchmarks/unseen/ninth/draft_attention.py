"""Ninth set: faults of the drafter's attention."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft attention", 9)
ATTEND = "kernels.drafter_layer:attend"


# Of the class of https://github.com/vllm-project/vllm/issues/51756: a window that belongs to other layers.
@fault(
    "drafter-in-the-target-window",
    "the drafter's layers share a cache group with the target's sliding ones, and take their window of 32",
    "drafter.layers.0.attn_out",
    "prefill",
    "the mask of every drafter layer: keys 32 positions back and more are not seen",
    "rows at positions from 32 on",
    "position >= 32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        near = at.positions[:, None] - np.arange(seen.shape[-1]) < 32
        return clean(q, keys, values, at.engine.array(at.host(seen) & near))

    alter(pipeline, ATTEND, change)


# From the equations: a block drafter's mask, where a row sees its whole block, for one whose rows are causal.
@fault(
    "rows-of-a-draft-see-each-other",
    "a draft pass runs with the mask of a block: every row sees all rows of its pass",
    "drafter.layers.0.attn_out",
    "draft",
    "the mask of every drafter layer in draft passes: rows behind a row are seen",
    "draft passes, all rows but the last",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen):
        if at.kind == "draft":
            count = at.committed + at.masked
            key, mask = np.arange(seen.shape[-1]), at.host(seen)
            mask[:, :count] |= (key >= at.positions[0]) & (key <= at.positions[count - 1])
            seen = at.engine.array(mask)
        return clean(q, keys, values, seen)

    alter(pipeline, ATTEND, change)


# From the equations: an output of a matrix multiplication in its operands' dtype.
@fault(
    "scores-in-bfloat16",
    "the drafter's scores leave their multiplication in bfloat16, and the softmax widens them again",
    "drafter.layers.0.attn_out",
    "prefill",
    "scores of every drafter layer: rounded to bfloat16",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, sink=None):
        if sink is not None:
            return clean(x, sink)
        return clean(at.changed(x, lambda scores: scores.astype(ml_dtypes.bfloat16).astype(np.float32)), sink)

    alter(pipeline, "kernels.attention:softmax", change)
