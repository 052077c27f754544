"""Faults of the target's router, its choice and the dispatch of rows to experts."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels.moe import experts as right_experts
from parity.device.pipeline import Pipeline

fault = Part("router and dispatch", 24)
LOGITS, OUT = "target.layers.0.router_logits", "target.layers.0.ffn_out"


@fault(
    "router-reads-stream-before-norm",
    "the router multiplies the residual stream where its norm is meant; the experts read the norm",
    LOGITS,
    "prefill",
    "input of the router in every layer",
)
def _(pipeline: Pipeline) -> None:
    streams = []

    def remember(at, clean, x, weight, eps):
        streams[:] = [x]
        return clean(x, weight, eps)

    def change(at, clean, x, weight, bias):
        return clean(streams[0] if weight.ndim == 2 else x, weight, bias)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", remember)
    alter(pipeline, "kernels.moe:linear", change)


@fault(
    "router-tile-end-loses-inner-tail",
    "the last row of each full tile of 32 rows loses the router's inputs from 64 on",
    LOGITS,
    "prefill",
    "contraction of the router, inputs 64 to 95",
    "each 32nd row of a prefill",
    "pass = prefill and row % 32 = 31",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, bias):
        def cut(value):
            value[:, 31::32, 64:] = 0
            return value

        hit = at.kind == "prefill" and weight.ndim == 2
        return clean(at.changed(x, cut) if hit else x, weight, bias)

    alter(pipeline, "kernels.moe:linear", change)


@fault(
    "running-best-starts-from-zero-logit",
    "the running maximum of top-k begins at 0: a choice among negative logits alone stays at expert 0",
    "target.layers.0.experts",
    "prefill",
    "expert of a choice whose logit is negative",
    "rows of whose two largest router logits one is negative",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        chosen = clean(logits, k)
        negative = np.take_along_axis(at.host(logits), at.host(chosen), -1) < 0
        return at.changed(chosen, lambda value: np.where(negative, 0, value))

    alter(pipeline, "kernels.moe:top_k", change)


@fault(
    "sorted-experts-keep-unsorted-shares",
    "a verify pass sorts the chosen experts by id and leaves their shares in the order of the choice",
    OUT,
    "verify",
    "shares of the two experts of a row, exchanged",
    "verify rows whose best expert has the higher id of the two",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        ids = at.changed(chosen, lambda value: np.sort(value, axis=-1)) if at.kind == "verify" else chosen
        return clean(outputs, ids, shares)

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "routing-share-multiplies-expert-input",
    "each expert's input is multiplied by the row's share, and its output is not",
    OUT,
    "prefill",
    "place of the routing shares in every layer",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, chosen, shares, weights, config):
        picked, share, rows = at.host(chosen)[0], at.host(shares)[0], at.host(x)[0]
        each = [rows * np.where(picked == e, share, 0).sum(-1)[:, None] for e in range(config.experts)]
        outputs = right_experts(at.array(np.stack(each), x), weights, config)
        mine = [np.where((picked == e).any(-1)[:, None], made, 0) for e, made in enumerate(at.host(outputs))]
        return at.array(np.sum(mine, axis=0)[None].astype(np.float32), shares)

    alter(pipeline, "kernels.moe:masked", change)


@fault(
    "lone-row-expert-skips-up-bias",
    "an expert that one row alone of a verify pass chooses runs as a matrix-vector product without up's bias",
    OUT,
    "verify",
    "up bias of an expert with one row",
    "verify rows that choose an expert which no other row of the pass chooses",
)
def _(pipeline: Pipeline) -> None:
    loads = []

    def remember(at, clean, x, chosen, *rest):
        loads[:] = [np.bincount(at.host(chosen).reshape(-1), minlength=pipeline.target.config.experts)]
        return clean(x, chosen, *rest)

    def change(at, clean, x, weights, config):
        if at.kind != "verify":
            return clean(x, weights, config)
        several = (loads[0] != 1)[:, None]
        return clean(x, weights | {"up_bias": at.changed(weights["up_bias"], lambda value: value * several)}, config)

    alter(pipeline, "kernels.moe:masked", remember)
    alter(pipeline, "kernels.moe:experts", change)
