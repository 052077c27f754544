"""Faults of the verify pass, acceptance, and stopping."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced, writing
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import altered
from parity.device.pipeline import Pipeline

fault = Part("verify and accept", 22)
OUT = "target.layers.0.attn_out"


@fault(
    "window-edge-of-tile",
    "a verify pass runs in tiles of 2 rows, and the window's far edge is that of a tile's first row",
    OUT,
    "verify",
    "window of the second row of each tile: one key too wide, in sliding layers",
    "every second row of verify passes, in sliding layers",
    "pass = verify and row % 2 = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        made = clean(rows)
        if at.kind != "verify":
            return made

        def wider(seen):
            value = at.host(seen).copy()
            odd = np.arange(1, value.shape[1], 2)
            value[:, odd] |= value[:, odd - 1]
            return at.array(value, seen)

        seen = {window: one if window is None else wider(one) for window, one in made.seen.items()}
        return replace(made, seen=seen)

    replaced(pipeline, pipeline.target, "step", change)


@fault(
    "last-verify-row-not-written",
    "a verify pass writes keys and values of K rows where it has K + 1",
    OUT,
    "verify",
    "the target's caches: the last row of a verify pass",
    "the last row of verify passes",
    "pass = verify and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, part, rows, slots):
        if at.kind == "verify":
            slots = slots.copy()
            slots[:, pipeline.k] = pipeline.target.trash
        return rows, slots

    writing(pipeline, "target", change)


@fault(
    "relaxed-acceptance",
    "a draft is accepted where it is one of the target's two likeliest tokens",
    "accept.length",
    "commit",
    "acceptance rule: the best two tokens in the place of the best",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def greedy(at, clean, logits):
        if at.kind == "verify":
            held["best"] = np.argsort(-at.host(logits)[0], axis=-1, kind="stable")[:, :2]
        return clean(logits)

    def accept(at, clean, drafts, verified, record):
        good = [draft in best for draft, best in zip(drafts, held["best"], strict=False)]
        count = [*good, False].index(False)
        return clean(drafts, np.concatenate([drafts[:count], verified[count:]]), record)

    alter(pipeline, "target:greedy", greedy)
    replaced(pipeline, pipeline, "_accept", accept)


@fault(
    "correction-of-second-row",
    "where no draft is accepted, the token in its place is taken from the second row: the index is 1 at the least",
    "accept.emitted",
    "commit",
    "the token that comes out",
    "rounds that accept no draft",
)
def _(pipeline: Pipeline) -> None:
    def change(emitted, drafts, tokens):
        if len(drafts) and drafts[0] != tokens[0]:
            emitted[0] = tokens[1]
        return emitted

    altered(pipeline, "commit", "accept.emitted", change)


@fault(
    "budget-counts-first-token-twice",
    "a round is cut at one token less than are left, as the prefill's token was counted twice",
    "accept.length",
    "commit",
    "tokens of a round that the budget cuts: one too few",
    "rounds that use up a budget of 2 tokens or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        return min(clean(drafts, verified), max(pipeline._left - 1, 1))

    replaced(pipeline, pipeline, "accepted", change)
