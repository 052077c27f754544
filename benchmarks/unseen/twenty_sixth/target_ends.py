"""Faults of the target's embedding, norms and head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("target ends and norms", 26)
LAST_PLAIN = 1263
"""Behind this id come the special tokens."""
NORM = "kernels.target_layer:gpt_oss_norm"


@fault(
    "special-tokens-clamped-to-table-end",
    "the embedding table ends before the special tokens: their ids are clamped to its last row",
    "target.embed",
    "prefill",
    "embedding of ids from 1264 on",
    "rows whose token is a special one, id 1264 or above",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        return clean(replace(rows, ids=np.minimum(rows.ids, LAST_PLAIN)))

    replaced(pipeline, pipeline.target, "embedded", change)


@fault(
    "last-vocabulary-tile-loses-inputs",
    "the head's last, smaller tile of 256 ids leaves out the contraction's tail of 32 inputs",
    "target.logits",
    "prefill",
    "head weight, inputs 64 to 95 of ids 1024 to 1279",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, *bias):
        def cut(value):
            value[..., 64:] = 0
            return value

        def tail(value):
            value[..., 1024:] = short[..., 1024:]
            return value

        short = at.host(clean(at.changed(x, cut), weight, *bias))
        return at.changed(clean(x, weight, *bias), tail)

    alter(pipeline, "target:linear", change)


@fault(
    "head-second-row-group-one-early",
    "the head takes rows in groups of 4, and the second group of a verify pass begins one row early",
    "verify.logits",
    "verify",
    "row that the head reads",
    "verify rows from row 4 on",
    "pass = verify and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, *bias):
        def early(value):
            value[:, 4:] = value[:, 3:-1].copy()[:, : value[:, 4:].shape[1]]
            return value

        return clean(at.changed(x, early) if at.kind == "verify" else x, weight, *bias)

    alter(pipeline, "target:linear", change)


@fault(
    "post-norm-weight-folded-and-multiplied",
    "the post-attention norm's weight is folded into the router's at loading, and the norm multiplies by it still",
    "target.layers.0.router_logits",
    "prefill",
    "router weight of every layer, times the norm's weight",
)
def _(pipeline: Pipeline) -> None:
    for weights in pipeline.target.layers:
        scale = pipeline.engine.host(weights["post_norm"]).astype(np.float32)[:, None]
        rewritten(pipeline, weights, "router", lambda value, scale=scale: value * scale)


@fault(
    "input-norm-second-tile-first-statistics",
    "the input norm's second tile of 128 rows is divided by the root mean squares of the first tile",
    "target.layers.0.attn_in",
    "prefill",
    "root mean square of the input norm in every layer",
    "rows from row 128 of a pass on",
    "row >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        root = np.sqrt(np.mean(np.square(at.host(x)), axis=-1, keepdims=True) + eps)

        def other(value):
            value[:, 128:] *= root[:, 128:] / root[:, :-128]
            return value

        made = clean(x, weight, eps)
        mine = weight is pipeline.target.layers[at.layer]["input_norm"] and x.shape[1] > 128
        return at.changed(made, other) if mine else made

    alter(pipeline, NORM, change)
