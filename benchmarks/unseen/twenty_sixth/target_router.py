"""Faults of the router and of the dispatch of rows to experts."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("target router", 26)
MIX = "kernels.moe:mix"


@fault(
    "shares-over-padded-four-choices",
    "the top-k is padded to four choices: shares are a softmax over the best four, of which two are used",
    "target.layers.0.ffn_out",
    "prefill",
    "shares of the chosen experts in every layer",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def choose(at, clean, logits, k):
        held["best"] = np.sort(at.host(logits), axis=-1)[..., -4:]
        return clean(logits, k)

    def share(at, clean, x, *sink):
        best, mine = held["best"], at.host(x)
        top = best.max(axis=-1, keepdims=True)
        return at.array(np.exp(mine - top) / np.exp(best - top).sum(axis=-1, keepdims=True), x)

    alter(pipeline, "kernels.moe:top_k", choose)
    alter(pipeline, "kernels.moe:softmax", share)


@fault(
    "router-weight-reshaped-not-transposed",
    "the router's weight of layer 5 is given its other shape without a transposition",
    "target.layers.5.router_logits",
    "prefill",
    "memory order of the router's weight in layer 5",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "router", lambda value: np.ascontiguousarray(value.T).reshape(value.shape), [5])


@fault(
    "choices-sorted-by-id-shares-not",
    "the chosen experts of a row are sorted by their id for the dispatch, their shares stay in the order of the logits",
    "target.layers.0.ffn_out",
    "prefill",
    "pairing of shares with experts in every layer",
    "rows whose first choice has the higher id of the two",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        return clean(outputs, at.changed(chosen, lambda value: np.sort(value, axis=-1)), shares)

    alter(pipeline, MIX, change)


@fault(
    "partial-last-tile-of-expert-dropped",
    "an expert's rows are counted in whole tiles of 16: with more than 16 rows the rest behind them gets nothing of it",
    "target.layers.0.ffn_out",
    "prefill",
    "expert's part in the rows of its last, partly filled tile, in every layer",
    "rows behind the whole tiles of 16 rows of an expert that has more than 16 in the pass",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        ids, real = at.host(chosen)[0], at.positions < pipeline.target.trash

        def dropped(value):
            for expert in range(outputs.shape[0]):
                rows = np.flatnonzero((ids == expert).any(axis=-1) & real)
                rest = rows[len(rows) // 16 * 16 :] if len(rows) > 16 else rows[:0]
                value[0, rest] = np.where(ids[rest] == expert, 0, value[0, rest])
            return value

        return clean(outputs, chosen, at.changed(shares, dropped))

    alter(pipeline, MIX, change)
