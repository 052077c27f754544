"""Faults of the verify pass, of acceptance and of what a commit keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import altered
from parity.device.pipeline import Pipeline

fault = Part("rounds", 24)


@fault(
    "verify-window-begins-at-first-row",
    "all rows of a verify pass begin their sliding window where its first row does: later rows see older keys too",
    "target.layers.0.attn_out",
    "verify",
    "sliding window of verify rows",
    "verify rows behind the first, sliding layers",
    "pass = verify and row > 0 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        made = clean(rows)
        if at.kind != "verify":
            return made
        window = next(one for one in pipeline.target.windows if one)
        near = int(rows.positions[0, 0]) - np.arange(made.span) < window
        causal = rows.positions[:, :, None] >= np.arange(made.span)
        return replace(made, seen=made.seen | {window: at.array(causal & near, made.seen[window])})

    replaced(pipeline, pipeline.target, "step", change)


@fault(
    "verify-starts-from-last-draft-not-bonus",
    "behind three or more accepted drafts the verify pass begins with the last of them, not with the token behind it",
    "target.embed",
    "verify",
    "id of the first verify row",
    "first row of verify passes behind a round that accepted three or more drafts",
    "pass = verify and accepted >= 3 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, width, group, record):
        if at.kind == "verify" and (at.accepted or 0) >= 3:
            ids = np.array([pipeline._text[-2], *ids[1:]])
        return clean(ids, width, group, record)

    replaced(pipeline, pipeline, "_target_pass", change)


@fault(
    "first-draft-accepted-without-comparison",
    "the comparison of drafts begins at the second one, the first is taken as right",
    "accept.length",
    "commit",
    "comparison of the first draft",
    "rounds whose first draft is wrong",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified, *rest):
        taken = at.host(drafts).copy()
        taken[:, :1] = at.host(verified)[:, : min(1, taken.shape[1])]
        return clean(at.array(taken, drafts), verified, *rest)

    alter(pipeline, "pipeline:emitted_length", change)


@fault(
    "bonus-token-repeats-row-before-it",
    "where every draft is accepted the token behind them is read from the verify row before the last",
    "accept.emitted",
    "commit",
    "last emitted token",
    "rounds that accept every draft",
)
def _(pipeline: Pipeline) -> None:
    def change(emitted, drafts, verified):
        if 1 < len(emitted) == len(drafts) + 1:
            emitted[-1] = verified[-2]
        return emitted

    altered(pipeline, "commit", "accept.emitted", change)


@fault(
    "accepted-run-cut-at-page-boundary",
    "a round emits no more tokens than the target's page of 16 rows, which its first row is in, has room for",
    "accept.length",
    "commit",
    "length of an accepted run",
    "rounds whose accepted run crosses a multiple of 16 rows",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        room = 16 - pipeline.target.length % 16
        return at.changed(clean(*given), lambda length: np.minimum(length, room))

    alter(pipeline, "pipeline:emitted_length", change)


@fault(
    "kept-verify-rows-gathered-one-late",
    "a commit gathers the accepted rows of the target's caches from one row behind each",
    "kv.target.0.k",
    "commit",
    "rows of the target's caches that a commit keeps",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, length):
        before = pipeline.target.length
        if at.kind == "commit":
            for one in (one for pair in pipeline.target.caches for one in pair):
                one[:, before:length] = at.array(at.host(one)[:, before + 1 : length + 1], one)
        return clean(length)

    replaced(pipeline, pipeline.target, "rollback", change)
