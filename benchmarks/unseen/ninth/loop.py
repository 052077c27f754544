"""Ninth set: faults of acceptance and of the rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("the loop", 9)


# From the equations: the length of what was accepted, without the token that the target adds.
@fault(
    "no-token-behind-a-full-round",
    "a round that accepts every draft emits the drafts alone, without the target's token behind them",
    "accept.length",
    "commit",
    "the bonus token: it does not come out",
    "rounds that accept all 4 drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        return min(clean(drafts, verified), len(drafts))

    replaced(pipeline, pipeline, "accepted", change)


# Of the class of https://github.com/kekzl/imp/issues/667: off by one where acceptance ends.
@fault(
    "own-token-of-the-row-behind",
    "the token that takes a rejected draft's place is read from the row behind it, which saw the rejected draft",
    "accept.emitted",
    "commit",
    "the last emitted token of a round that rejects a draft: the target's of the next verify row",
    "rounds that reject a draft",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified, record):
        last, taken = pipeline.accepted(drafts, verified) - 1, verified.copy()
        if last < len(drafts) and drafts[last] != verified[last]:
            taken[last] = verified[last + 1]
        return clean(drafts, taken, record)

    replaced(pipeline, pipeline, "_accept", change)


# After https://github.com/ROCm/hip/issues/3902
@fault(
    "drafts-of-the-round-before",
    "a replayed verify pass reads its drafts before the copy of even rounds has landed",
    "target.embed",
    "verify",
    "ids of the drafts in a verify pass: those of the round before; the bonus token is right",
    "rows from 1 on of verify passes of even rounds",
    "pass = verify and round % 2 = 0 and row >= 1",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, rows):
        if at.kind != "verify":
            return clean(rows)
        held[at.round], ids = rows.ids, rows.ids.copy()
        if at.round % 2 == 0:
            ids[0, 1 : rows.count] = held[at.round - 1][0, 1 : rows.count]
        return clean(replace(rows, ids=ids))

    replaced(pipeline, pipeline.target, "embedded", change)


# From the equations: a running product over drafts, from the wrong end.
@fault(
    "agreement-counted-from-the-end",
    "drafts that agree are counted from the last one back to the first that does not",
    "accept.length",
    "commit",
    "acceptance: the length of the drafts' agreeing end, where that of their beginning is meant",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        agree = np.cumprod((drafts == verified[:-1])[::-1]).sum()
        return clean(np.where(np.arange(len(drafts)) < agree, verified[:-1], -1), verified)

    replaced(pipeline, pipeline, "accepted", change)


# Of the class of https://github.com/vllm-project/vllm/pull/32887: inputs of a draft pass of a static width.
@fault(
    "masked-positions-behind-the-padding",
    "positions of masked rows count from as many committed rows as a pass has room for, 5",
    "drafter.positions",
    "draft",
    "positions of masked rows: too large by the number of committed rows that are missing to 5; slots are right",
    "masked rows of draft passes of fewer than 5 committed rows: not behind a round that accepted all 4 drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        made, positions, slots = clean(ids, others)
        if at.kind == "draft":
            positions = positions + (np.arange(len(positions)) >= len(ids)) * (pipeline.k + 1 - len(ids))
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


# From the equations: a loop that begins with its second comparison.
@fault(
    "first-draft-not-compared",
    "the comparison of drafts begins with the second one, and the first is always accepted",
    "accept.length",
    "commit",
    "acceptance of the first draft: it need not be the target's token",
    "rounds that reject the first draft",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        return clean(np.concatenate([verified[:1], drafts[1:]])[: len(drafts)], verified)

    replaced(pipeline, pipeline, "accepted", change)
