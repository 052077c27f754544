"""Faults of what the drafter is fed: taps, tokens, positions."""

from __future__ import annotations

from typing import Any

from benchmarks.unseen.moments import alter, moment, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("drafter inputs", 23)
WIDTH = 96
"""Of one tap."""


@fault(
    "second-tap-before-its-experts",
    "the second tap is taken between attention and experts of layer 3, in front of the last sum of that layer",
    "drafter.taps",
    "prefill",
    "second of three taps: the experts' output of layer 3 is not in it",
)
def _(pipeline: Pipeline) -> None:
    made: dict[int, Any] = {}

    def kept(at, clean, x, *rest):
        made[at.layer] = clean(x, *rest)
        return made[at.layer]

    def change(at, clean, streams, taps):
        def without(value):
            branch = at.host(made[taps[1] - 1])
            value[..., WIDTH : 2 * WIDTH] -= branch
            return value

        return at.changed(clean(streams, taps), without)

    alter(pipeline, "kernels.target_layer:moe", kept)
    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "bonus-tap-out-of-a-k-row-buffer",
    "taps of a verify pass are kept in a buffer of K rows: behind a full accept the bonus row repeats the row before",
    "drafter.taps",
    "draft",
    "tap of the last committed row behind a round that accepted all K drafts",
    "last committed row of draft passes behind a round that accepted all K drafts",
    "pass = draft and accepted = 4 and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, first, count, width, record):
        k = pipeline.k
        if at.kind == "draft" and at.accepted == k:

            def clamped(value):
                value[:, k] = value[:, k - 1]
                return value

            taps = at.changed(taps, clamped)
        return clean(taps, first, count, width, record)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "placeholder-row-as-padding",
    "the placeholder's row of the drafter's embedding is zero, as that of a padding token",
    "drafter.layers.0.attn_out",
    "draft",
    "embedding of the placeholder, which masked rows carry",
)
def _(pipeline: Pipeline) -> None:
    def cleared(value):
        value[pipeline.drafter.config.placeholder] = 0
        return value

    rewritten(pipeline, pipeline.drafter.outer, "embed", cleared)


@fault(
    "embedding-chunk-one-row-early",
    "rows 768 to 895 of the drafter's embedding are loaded one row early: each holds the row before",
    "drafter.layers.0.attn_out",
    "prefill",
    "embedding of the ids 768 to 895",
    "rows whose token id is 768 to 895",
)
def _(pipeline: Pipeline) -> None:
    def early(value):
        value[768:896] = value[767:895].copy()
        return value

    rewritten(pipeline, pipeline.drafter.outer, "embed", early)


@fault(
    "tile-end-row-not-gathered",
    "a prefill gathers 31 of each 32 embeddings: the last row of a tile repeats the row before",
    "drafter.layers.0.attn_out",
    "prefill",
    "embedding of the last row of each tile of 32 rows of a prefill",
    "rows 31, 63, 95 and so on of prefill passes",
    "pass = prefill and row % 32 = 31",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        made = clean(rows)
        if at.kind != "prefill":
            return made

        def repeated(value):
            value[:, 31::32] = value[:, 30::32][:, : value[:, 31::32].shape[1]]
            return value

        return at.changed(made, repeated)

    replaced(pipeline, pipeline.drafter, "embedded", change)


@fault(
    "position-kept-behind-rejection",
    "where a round accepts no draft the drafter's position buffer is not moved on",
    "drafter.positions",
    "draft",
    "positions of every row, one too small",
    "draft passes behind a round that accepted no draft",
    "pass = draft and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)

    def change(_, clean, ids, others):
        ids, positions, slots = clean(ids, others)
        return ids, positions - (at.kind == "draft" and at.accepted == 0), slots

    replaced(pipeline, pipeline.drafter, "layout", change)
