"""Faults of the target's router, and of what reaches the experts it chose."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("target experts")


@fault(
    "router-bias-of-neighbour",
    "expert 2's router bias is that of expert 3 in layer 4",
    "target.layers.4.router_logits",
    "prefill",
    "router bias of expert 2 of layer 4",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "router_bias", lambda value: value[[0, 1, 3, 3, 4, 5]], [4])


@fault(
    "router-in-eighths",
    "the router weight of layer 7 is kept in fp8 (e4m3)",
    "target.layers.7.router_logits",
    "prefill",
    "router weight of layer 7",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "router", lambda value: value.astype(float8_e4m3fn).astype(np.float32), [7])


@fault(
    "shares-follow-sorted-ids",
    "experts are sorted by id and their shares are not, in layer 5",
    "target.layers.5.ffn_out",
    "prefill",
    "shares of layer 5",
    "rows whose first choice has the larger id, layer 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        if at.layer == 5:
            wrong = at.host(chosen[..., :1] > chosen[..., 1:])
            shares = at.changed(shares, lambda value: np.where(wrong, value[..., ::-1], value))
        return clean(outputs, chosen, shares)

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "expert-capacity-of-32",
    "an expert of layer 1 takes 32 rows of a prefill at most, later ones go without",
    "target.layers.1.ffn_out",
    "prefill",
    "rows behind the 32nd of each expert of layer 1",
    "prefill rows whose expert has had 32 rows before, layer 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        def capped(value):
            ids = at.host(chosen)
            for expert in range(6):
                mine = ids == expert
                before = np.cumsum(mine.any(axis=-1), axis=1)[..., None]
                value = np.where(mine & (before > 32), 0.0, value)
            return value

        there = at.layer == 1 and at.kind == "prefill"
        return clean(outputs, chosen, at.changed(shares, capped) if there else shares)

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "row-3-takes-row-2-experts",
    "row 3 of a verify pass is sent to row 2's experts in layer 6",
    "target.layers.6.experts",
    "verify",
    "chosen experts of layer 6",
    "row 3 of verify passes, layer 6",
    "pass = verify and row = 3 and layer = 6",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        made = clean(*given)

        def stale(value):
            value[:, 3:4] = value[:, 2:3][:, : value[:, 3:4].shape[1]]
            return value

        return at.changed(made, stale) if at.layer == 6 and at.kind == "verify" else made

    alter(pipeline, "kernels.moe:top_k", change)


@fault(
    "experts-of-one-share",
    "both experts of a row weigh one half in layer 7 in the first round",
    "target.layers.7.ffn_out",
    "verify",
    "shares of layer 7",
    "the verify pass of round 1, layer 7",
    "pass = verify and round = 1 and layer = 7",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        there = at.layer == 7 and at.kind == "verify" and at.round == 1
        return clean(outputs, chosen, at.changed(shares, lambda value: 0 * value + 0.5) if there else shares)

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "weak-share-flushed",
    "the second expert of a row goes without where its share is below 0.2",
    "target.layers.0.ffn_out",
    "prefill",
    "second experts of every layer",
    "rows whose second share is below 0.2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        return clean(outputs, chosen, at.changed(shares, lambda value: np.where(value < 0.2, 0.0, value)))

    alter(pipeline, "kernels.moe:mix", change)
