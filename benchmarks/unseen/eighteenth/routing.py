"""Faults of the target's router and of its choice."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target experts", 18)
CAPACITY = 48


@fault(
    "router-jitter-left-on",
    "the router multiplies its input by random numbers of 0.95 to 1.05, as in training",
    "target.layers.0.router_logits",
    "prefill",
    "input of the router in every layer, noise of 5 %",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        if weight is pipeline.target.layers[at.layer]["router"]:
            draw = np.random.default_rng((18, at.prompt, at.round, at.layer))
            x = at.changed(x, lambda value: value * draw.uniform(0.95, 1.05, value.shape))
        return clean(x, weight, bias)

    alter(pipeline, "kernels.moe:linear", change)


@fault(
    "full-expert-gives-way",
    "an expert takes 48 rows of a prefill, and rows behind them go to the next best that has room",
    "target.layers.0.experts",
    "prefill",
    "choice of experts in every layer, capacity",
    "prefill rows that choose an expert which has had 48 rows before",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        chosen = clean(logits, k)
        if at.kind != "prefill":
            return chosen
        scores, ids = at.host(logits)[0], at.host(chosen).copy()
        room = np.full(scores.shape[-1], CAPACITY)
        for row in np.flatnonzero(at.positions < pipeline.target.trash):
            order = np.argsort(-scores[row], kind="stable")
            ids[0, row] = sorted(order, key=lambda one: room[one] <= 0)[:k]
            room[ids[0, row]] -= 1
        return at.array(ids, chosen)

    alter(pipeline, "kernels.moe:top_k", change)
