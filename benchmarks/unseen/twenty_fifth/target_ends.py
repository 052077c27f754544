"""Faults of the target's embedding, final norm, head and taps."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("target ends", 25)
WIDTH = 96
"""Of one tap."""


@fault(
    "whole-embedding-table-kept-in-int8",
    "the embedding table is loaded as int8 with one scale for all of it",
    "target.embed",
    "prefill",
    "embedding table of the target",
)
def _(pipeline: Pipeline) -> None:
    def coarse(value):
        step = np.abs(value).max() / 127
        return np.round(value / step) * step

    edit(pipeline.target, "embed", coarse)


@fault(
    "last-vocabulary-shard-embeds-row-before",
    "ids of the last vocabulary shard, from 1024 on, take the row of the id before",
    "target.embed",
    "prefill",
    "row of the embedding table of ids from 1024 on",
    "rows whose token id is 1024 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, table):
        return clean(at.changed(ids, lambda value: np.where(value >= 1024, value - 1, value)), table)

    alter(pipeline, "target:embed", change)


@fault(
    "final-norm-bound-to-post-norm-of-last-layer",
    "the final norm takes the weight of the last layer's norm before the experts",
    "target.pre_head_hidden",
    "prefill",
    "weight of the final norm",
)
def _(pipeline: Pipeline) -> None:
    pipeline.target.outer["norm"] = pipeline.target.layers[7]["post_norm"]


@fault(
    "second-buffer-of-final-norm-never-filled",
    "the final norm's weight sits in two buffers, the one of even rounds holds ones",
    "target.pre_head_hidden",
    "verify",
    "weight of the final norm",
    "verify passes of even rounds",
    "pass = verify and round % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        unfilled = at.kind == "verify" and at.round % 2 == 0
        return clean(x, at.changed(weight, np.ones_like) if unfilled else weight, eps)

    alter(pipeline, "target:gpt_oss_norm", change)


@fault(
    "upper-half-of-head-shifted-by-one-token",
    "the second vocabulary shard of the head, from 640 on, is one column late",
    "target.logits",
    "prefill",
    "columns 640 to 1279 of the head",
)
def _(pipeline: Pipeline) -> None:
    def shifted(value):
        return np.concatenate([value[:, :640], np.roll(value[:, 640:], 1, axis=1)], axis=1)

    edit(pipeline.target, "head", shifted)


@fault(
    "fourth-verify-row-takes-logits-of-third",
    "the head reads the hidden of row 2 for row 3 of a verify pass",
    "verify.logits",
    "verify",
    "row of the hidden that the head multiplies",
    "row 3 of verify passes",
    "pass = verify and row = 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, *rest):
        def repeated(value):
            value = value.copy()
            value[:, 3:4] = value[:, 2:3][:, : value[:, 3:4].shape[1]]
            return value

        return clean(at.changed(x, repeated) if at.kind == "verify" else x, *rest)

    alter(pipeline, "target:linear", change)


@fault(
    "middle-tap-repeats-at-end-of-row-tiles",
    "the last row of each tile of 32 repeats the middle tap of the row before",
    "drafter.taps",
    "prefill",
    "second of three taps",
    "the last row of each tile of 32 rows of a prefill",
    "pass = prefill and row % 32 = 31",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def repeated(value):
            value = value.copy()
            count = value[:, 31::32].shape[1]
            value[:, 31::32, WIDTH : 2 * WIDTH] = value[:, 30::32, WIDTH : 2 * WIDTH][:, :count]
            return value

        made = clean(streams, taps)
        return at.changed(made, repeated) if at.kind == "prefill" else made

    replaced(pipeline, pipeline.target, "join", change)
