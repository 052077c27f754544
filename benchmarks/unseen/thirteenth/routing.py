"""Thirteenth set: faults of the router's choice and of its shares."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("routing", 13)


# From the equations: a softmax along the axis that is the last one of another layout.
@fault(
    "shares-along-the-rows",
    "the softmax of the chosen logits runs along the pass' rows, not along a row's choices",
    "target.layers.0.ffn_out",
    "prefill",
    "shares of every layer's experts: softmax over the rows of the pass, padding among them; a row's do not sum to 1",
)
def _(pipeline: Pipeline) -> None:
    def along(logits):
        parts = np.exp(logits - logits.max(axis=1, keepdims=True))
        return parts / parts.sum(axis=1, keepdims=True)

    alter(pipeline, "kernels.moe:softmax", lambda at, clean, x: at.changed(x, along))


# From the equations: a stride of zero, as of a tensor that was expanded for one row.
@fault(
    "shares-of-row-0-for-all",
    "shares of a verify pass are read by a stride of 0, left from decoding one row",
    "target.layers.0.ffn_out",
    "verify",
    "shares of every layer's experts: those of row 0; chosen experts are right",
    "verify rows but the first",
    "pass = verify and row >= 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x):
        made = clean(x)
        return at.changed(made, lambda rows: rows[:, [0] * rows.shape[1]]) if at.kind == "verify" else made

    alter(pipeline, "kernels.moe:softmax", change)


# After https://github.com/mirage-project/mirage/pull/664: the shuffle mask of a warp's last group of rows.
@fault(
    "lone-row-chooses-among-half",
    "a warp chooses for two rows, and in one that has a single row the lanes of experts 3 to 5 take no part",
    "target.layers.0.experts",
    "verify",
    "the choice of experts in every layer: among experts 0 to 2 alone",
    "the last row of a pass of an odd number of rows: at K = 4 of every verify pass, row 4",
    "pass = verify and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        if at.kind != "verify":
            return clean(logits, k)

        def hide(rows):
            rows[:, 4, 3:] = -1e30
            return rows

        return clean(at.changed(logits, hide), k)

    alter(pipeline, "kernels.moe:top_k", change)
