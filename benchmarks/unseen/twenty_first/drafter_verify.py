"""Faults of the verify pass's rows and of the acceptance rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("verify and accept", 21)


@fault(
    "window-from-first-verify-row",
    "in a verify pass the sliding window of every row begins where that of the first row begins",
    "target.layers.0.attn_out",
    "verify",
    "lower end of the window in sliding layers",
    "verify rows but the first, sliding layers",
    "pass = verify and row > 0 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, positions, slots, tables, span, windows):
        made = clean(positions, slots, tables, span, windows)
        if at.kind != "verify":
            return made
        where, key = at.host(positions)[0], np.arange(span)

        def begun(window, seen):
            wide = (key <= where[:, None]) & (where[0] - key < window)
            return at.array(wide[None], seen)

        seen = {window: begun(window, one) if window else one for window, one in made.seen.items()}
        return replace(made, seen=seen)

    replaced(pipeline, pipeline.target, "make_step", change)


@fault(
    "last-draft-of-round-before",
    "from round 2 on the last row of a verify pass carries the last draft of the round before",
    "target.embed",
    "verify",
    "token of the last verify row",
    "the last row of verify passes from round 2 on",
)
def _(pipeline: Pipeline) -> None:
    held = []

    def change(at, clean, drafts, *rest):
        given = np.array(drafts)
        used = given.copy()
        if held and at.round > 1:
            used[-1:] = held[0]
        held[:] = [given[-1]]
        return clean(used, *rest)

    replaced(pipeline, pipeline, "verify", change)


@fault(
    "typical-acceptance-left-on",
    "a draft counts as accepted too whose probability exceeds the smaller of 0.3 and 0.09 exp(-entropy)",
    "accept.length",
    "commit",
    "the rule that accepts a draft",
    "rounds whose first draft that the target does not choose has that much of the target's probability",
)
def _(pipeline: Pipeline) -> None:
    held = []

    def look(at, clean, logits):
        if at.kind == "verify":
            held[:] = [at.host(logits)[0].astype(np.float64)]
        return clean(logits)

    def change(at, clean, drafts, verified):
        shares = np.exp(held[0] - held[0].max(axis=-1, keepdims=True))[: len(drafts)]
        shares /= shares.sum(axis=-1, keepdims=True)
        entropy = -np.sum(shares * np.log(shares + 1e-30), axis=-1)
        typical = shares[np.arange(len(drafts)), drafts] > np.minimum(0.3, 0.09 * np.exp(-entropy))
        return clean(np.where(typical, verified[:-1], drafts), verified)

    alter(pipeline, "target:greedy", look)
    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "bonus-repeats-last-draft",
    "where all drafts are accepted the bonus is read one row early, and the last draft comes out twice",
    "accept.emitted",
    "commit",
    "row of the bonus token",
    "rounds that accept all K drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified, record):
        if len(drafts) and np.array_equal(drafts, verified[:-1]):
            verified = np.append(verified[:-1], verified[-2])
        return clean(drafts, verified, record)

    replaced(pipeline, pipeline, "_accept", change)


@fault(
    "one-token-near-budget",
    "a round that begins with fewer tokens left than K + 1 emits one token, whatever it accepts",
    "accept.length",
    "commit",
    "tokens that come out near the budget's end",
    "rounds that begin with fewer than K + 1 tokens left",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        length = clean(drafts, verified)
        return min(length, 1) if pipeline.left < pipeline.k + 1 else length

    replaced(pipeline, pipeline, "accepted", change)
