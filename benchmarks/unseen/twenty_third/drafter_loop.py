"""Faults of the loop: what the target verifies and how, what is accepted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("loop", 23)


@fault(
    "draft-vocabulary-ids-verified",
    "the target runs over the drafts' ids in the draft vocabulary; those that are compared are the right ones",
    "target.embed",
    "verify",
    "ids of the drafts in a verify pass: d2t is not applied",
)
def _(pipeline: Pipeline) -> None:
    offsets = np.asarray(pipeline.engine.host(pipeline.drafter.outer["d2t"])).astype(np.int64)
    back = {int(ident + offset): ident for ident, offset in enumerate(offsets)}

    def change(at, clean, rows):
        ids = rows.ids
        if at.kind == "verify":
            ids = ids.copy()
            ids[0, 1 : rows.count] = [back.get(int(one), 0) for one in ids[0, 1 : rows.count]]
        return clean(replace(rows, ids=ids))

    replaced(pipeline, pipeline.target, "embedded", change)


@fault(
    "last-draft-of-other-buffer",
    "in even rounds the last draft is not yet copied when the target runs: it is that of the round before",
    "target.embed",
    "verify",
    "id of the last draft in a verify pass",
    "last row of the verify passes of even rounds",
    "pass = verify and round % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    before: list[int] = []

    def change(at, clean, rows):
        if at.kind != "verify" or rows.count < 2:
            return clean(rows)
        ids, last = rows.ids.copy(), rows.count - 1
        if at.round % 2 == 0 and before:
            ids[0, last] = before[0]
        before[:] = [int(rows.ids[0, last])]
        return clean(replace(rows, ids=ids))

    replaced(pipeline, pipeline.target, "embedded", change)


@fault(
    "verify-window-of-last-row",
    "in a verify pass the sliding window begins for every row where that of the pass' last row begins",
    "target.layers.0.attn_out",
    "verify",
    "first key of the sliding window of every verify row but the last, in sliding layers",
    "verify passes, every row but the last",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        step = clean(rows)
        if at.kind != "verify":
            return step
        end = int(rows.positions[0, : rows.count].max())

        def seen(window):
            held = pipeline.engine.host(step.seen[window]).copy()
            if window is not None:
                held[0, : rows.count, : max(end - window + 1, 0)] = False
            return pipeline.engine.array(held)

        return replace(step, seen={window: seen(window) for window in step.seen})

    replaced(pipeline, pipeline.target, "step", change)


@fault(
    "one-token-rounds-near-budget",
    "where at most 8 tokens are left the scheduler falls back to one token a round, whatever the drafts",
    "accept.length",
    "commit",
    "accepted length: drafts are not counted",
    "rounds that begin with at most 8 tokens left and whose first draft is right",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        return min(clean(drafts, verified), 1) if pipeline._left <= 8 else clean(drafts, verified)

    replaced(pipeline, pipeline, "accepted", change)
