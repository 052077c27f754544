"""Fourteenth set: faults of the router's choice and of its shares."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("routing", 14)


# After https://github.com/mirage-project/mirage/pull/764: rows past the first block are never visited.
@fault(
    "router-ends-with-its-first-block",
    "one block of threads chooses for 16 rows, and there is no second one: indices behind them stay 0",
    "target.layers.0.experts",
    "prefill",
    "the choice of experts in every layer: expert 0, twice",
    "prefill rows from 16 on",
    "pass = prefill and row >= 16",
)
def _(pipeline: Pipeline) -> None:
    def clear(rows):
        rows[:, 16:] = 0
        return rows

    def change(at, clean, logits, k):
        made = clean(logits, k)
        return at.changed(made, lambda rows: clear(rows.copy())) if at.kind == "prefill" else made

    alter(pipeline, "kernels.moe:top_k", change)


# From the equations: floats that are sorted by their bits.
@fault(
    "logits-sorted-as-bits",
    "the router sorts the bits of its logits as unsigned integers",
    "target.layers.0.experts",
    "prefill",
    "the choice of experts in every layer: a negative logit comes before any other, the most negative one first",
    "rows with a negative router logit, which is nearly all",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        bits = at.host(logits).view(np.uint32).astype(np.int64)
        order = np.argsort(-bits, axis=-1, kind="stable")[..., :k]
        return at.changed(clean(logits, k), lambda ids: order.astype(ids.dtype))

    alter(pipeline, "kernels.moe:top_k", change)


# After https://github.com/mirage-project/mirage/pull/764: two layouts of the shares, one to write and one to read.
@fault(
    "shares-read-choice-by-choice",
    "shares are written row by row, and read as if all first choices of a pass came before all second ones",
    "target.layers.0.ffn_out",
    "prefill",
    "shares of every layer's experts: choice j of row r in a pass of n rows has number n j + r of all shares in a row",
)
def _(pipeline: Pipeline) -> None:
    def crossed(rows):
        return rows.reshape(rows.shape[-1], rows.shape[1]).T[None]

    alter(pipeline, "kernels.moe:softmax", lambda at, clean, x: at.changed(clean(x), crossed))
