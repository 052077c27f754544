"""Faults of the target's router and of the dispatch to its experts."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import during
from parity.device.pipeline import Pipeline

fault = Part("router and dispatch of the target", 21)
OUT, MIX = "target.layers.0.ffn_out", "kernels.moe:mix"
BLOCK = 64


@fault(
    "shares-multiply-the-input",
    "a chosen expert's share multiplies its input, as in Llama 4, and not its output",
    OUT,
    "prefill",
    "place of the shares in every layer: in front of the experts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, chosen, shares, *rest):
        total = 0.0
        for place in range(chosen.shape[-1]):
            share = shares[..., place : place + 1]
            mine = (x.astype(np.float32) * share).astype(x.dtype)
            total = clean(mine, chosen[..., place : place + 1], share * 0.0 + 1.0, *rest) + total
        return total

    alter(pipeline, "kernels.moe:masked", change)


@fault(
    "exp-table-too-short",
    "the table of exponentials behind the shares ends at -2.5: what lies further below takes its last entry",
    OUT,
    "prefill",
    "share of the second choice in every layer",
    "rows whose first two router logits are more than 2.5 apart",
)
def _(pipeline: Pipeline) -> None:
    def make(clean):
        return lambda x: clean(np.maximum(x, np.max(x, axis=-1, keepdims=True) - 2.5))

    during(pipeline, "kernels.moe:softmax", make)


@fault(
    "second-block-has-next-expert",
    "the map of blocks of 64 rows to experts moves on too early: an expert's second block runs on the next expert",
    OUT,
    "prefill",
    "expert of the rows behind the first 64 of an expert, every layer",
    "rows behind the 64th that one expert has in a pass",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        mine, count = at.host(chosen), outputs.shape[0]
        if mine.shape[1] <= BLOCK:
            return clean(outputs, chosen, shares)

        def moved(value):
            right = value.copy()
            for expert in range(count):
                rows = np.flatnonzero((mine[0] == expert).any(axis=-1))[BLOCK:]
                value[expert, 0, rows] = right[(expert + 1) % count, 0, rows]
            return value

        return clean(at.changed(outputs, moved), chosen, shares)

    alter(pipeline, MIX, change)


@fault(
    "shares-in-order-of-choice",
    "the kernel of few rows sorts a row's experts by id and leaves their shares in the order of choice",
    OUT,
    "verify",
    "shares of the two chosen experts exchanged in every layer",
    "verify rows whose first choice has the higher id",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        if at.kind == "verify":
            mine = np.sort(at.host(chosen), axis=-1)
            chosen = at.array(mine, chosen)
        return clean(outputs, chosen, shares)

    alter(pipeline, MIX, change)
