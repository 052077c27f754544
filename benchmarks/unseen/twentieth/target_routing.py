"""Faults of the router, and of what hands rows to experts."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.kernels.norm import normalise
from parity.device.pipeline import Pipeline

fault = Part("router and dispatch", 20)


@fault(
    "router-reads-unweighted-norm",
    "the router reads the stream over its root mean square, without the norm's weight",
    "target.layers.0.router_logits",
    "prefill",
    "input of the router in every layer",
)
def _(pipeline: Pipeline) -> None:
    layers, kept = pipeline.target.layers, {}

    def norm(at, clean, x, weight, eps):
        kept["plain"] = normalise(x, eps).astype(x.dtype)
        return clean(x, weight, eps)

    def linear(at, clean, x, weight, bias):
        return clean(kept["plain"] if weight is layers[at.layer]["router"] else x, weight, bias)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", norm)
    alter(pipeline, "kernels.moe:linear", linear)


@fault(
    "best-of-each-half",
    "the two experts are the best of each half of them: a top-k in two stages whose first keeps one",
    "target.layers.0.experts",
    "prefill",
    "second expert chosen",
    "rows whose two best experts lie in the same half, 0 to 2 or 3 to 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits, k):
        value = at.host(logits)
        half = value.shape[-1] // 2
        best = np.stack([np.argmax(value[..., :half], -1), half + np.argmax(value[..., half:], -1)], -1)
        order = np.argsort(-np.take_along_axis(value, best, axis=-1), axis=-1, kind="stable")
        return at.engine.array(np.take_along_axis(best, order, axis=-1))

    alter(pipeline, "kernels.moe:top_k", change)


@fault(
    "ids-sorted-shares-not",
    "in the prefill a row's experts are sorted by number, and their shares stay in the order of the logits",
    "target.layers.0.ffn_out",
    "prefill",
    "shares of a row's two experts exchanged",
    "prefill rows whose best expert has a higher number than the second",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        if at.kind == "prefill":
            chosen = at.engine.array(np.sort(at.host(chosen), axis=-1))
        return clean(outputs, chosen, shares)

    alter(pipeline, "kernels.moe:mix", change)


@fault(
    "expert-of-one-row-skipped",
    "in a verify pass an expert that a single row has chosen is not run: the loop asks for more than one",
    "target.layers.0.ffn_out",
    "verify",
    "output of experts with one row: zero",
    "verify rows that choose an expert which no other row of the pass chooses",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, outputs, chosen, shares):
        if at.kind == "verify":
            ids = at.host(chosen)
            alone = np.bincount(ids.reshape(-1), minlength=outputs.shape[0])[ids] == 1
            shares = at.changed(shares, lambda value: np.where(alone, 0, value))
        return clean(outputs, chosen, shares)

    alter(pipeline, "kernels.moe:mix", change)
