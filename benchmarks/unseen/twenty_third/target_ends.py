"""Faults of the target's two ends: embedding, final norm, head, taps."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target embedding, head and taps", 23)
TAPS, WIDTH = "drafter.taps", 96


def of_last_layers(pipeline: Pipeline) -> dict:
    """What the experts of each layer gave last, as it is kept up to date."""
    kept = {}

    def change(at, clean, *given):
        kept[at.layer] = clean(*given)
        return kept[at.layer]

    alter(pipeline, "kernels.target_layer:moe", change)
    return kept


@fault(
    "added-tokens-clipped",
    "the embedding has the rows of the base vocabulary alone: ids from 1264 on, the added tokens, take row 1263",
    "target.embed",
    "prefill",
    "embeddings of the added tokens",
    "rows whose token id is 1264 or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, table):
        return clean(at.changed(ids, lambda value: np.minimum(value, 1263)), table)

    alter(pipeline, "target:embed", change)


@fault(
    "last-branch-added-again",
    "the fused add and norm at the end adds the last layer's experts to a stream that holds them already",
    "target.pre_head_hidden",
    "prefill",
    "input of the final norm",
)
def _(pipeline: Pipeline) -> None:
    kept = of_last_layers(pipeline)

    def change(at, clean, x, weight, eps):
        return clean(at.changed(x, lambda value: value + at.host(kept[7])), weight, eps)

    alter(pipeline, "target:gpt_oss_norm", change)


@fault(
    "last-head-tile-moved-back",
    "the head runs in tiles of 512 ids; the third begins at 768 to fit, and is stored from 1024 on",
    "target.logits",
    "prefill",
    "logits of ids 1024 to 1279",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        def moved(value):
            value[..., 1024:] = value[..., 768:1024].copy()
            return value

        return at.changed(clean(x, weight), moved)

    alter(pipeline, "target:linear", change)


@fault(
    "verify-head-tile-of-4-rows",
    "the head takes verify rows in tiles of 4 and does not move its input on: row 4 has the logits of row 0",
    "verify.logits",
    "verify",
    "rows that the head reads",
    "verify rows from the fifth on",
    "pass = verify and row >= 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight):
        if at.kind == "verify":
            x = at.changed(x, lambda value: value[:, np.arange(value.shape[1]) % 4])
        return clean(x, weight)

    alter(pipeline, "target:linear", change)


@fault(
    "last-tap-before-experts",
    "the last tap is taken between attention and experts, one half of a layer early",
    TAPS,
    "prefill",
    "third of three taps",
)
def _(pipeline: Pipeline) -> None:
    kept = of_last_layers(pipeline)

    def change(at, clean, streams, taps):
        number, streams = taps[-1], list(streams)
        streams[number] = at.changed(streams[number], lambda value: value - at.host(kept[number - 1]))
        return clean(streams, taps)

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "tap-buffer-of-128-rows",
    "the buffer of the first tap has 128 rows: rows of a prefill behind it repeat its last one",
    TAPS,
    "prefill",
    "first of three taps",
    "prefill rows from position 128 on",
    "pass = prefill and position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def repeated(value):
            value[:, 128:, :WIDTH] = value[:, 127:128, :WIDTH]
            return value

        made = clean(*given)
        return at.changed(made, repeated) if at.kind == "prefill" and made.shape[1] > 128 else made

    replaced(pipeline, pipeline.target, "join", change)
