"""Faults of the host loop: what a pass is fed, what is accepted, what comes out."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.planting import Part, replaced
from parity.device.pipeline import Pipeline

fault = Part("loop")
LENGTH, EMITTED = "accept.length", "accept.emitted"
MASKED = 3
"""Masked rows of a draft pass."""


@fault(
    "last-draft-not-compared",
    "the last draft is accepted wherever all before it are",
    LENGTH,
    "commit",
    "comparison of the last draft",
    "rounds that accept the first 3 drafts and reject the last",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        drafts = drafts.copy()
        drafts[-1] = verified[len(drafts) - 1]
        return clean(drafts, verified)

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "bonus-of-row-before",
    "where all drafts are accepted the bonus token is that of the row before",
    EMITTED,
    "commit",
    "bonus token",
    "rounds that accept all 4 drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified, record):
        if np.array_equal(drafts, verified[:-1]):
            verified = np.concatenate([verified[:-1], verified[-2:-1]])
        return clean(drafts, verified, record)

    replaced(pipeline, pipeline, "_accept", change)


@fault(
    "cap-of-two-behind-rejection",
    "behind a round that accepted nothing two tokens come out at most",
    LENGTH,
    "commit",
    "accepted length",
    "rounds behind one that accepted nothing, which accept 2 drafts or more",
    "accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        return min(clean(*given), 2 if at.accepted == 0 else 99)

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "every-third-round-accepts-nothing",
    "every third round emits the target's own token alone",
    LENGTH,
    "commit",
    "accepted length",
    "rounds whose number is a multiple of 3",
    "round % 3 = 0 and round > 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        return clean(*given) if at.round % 3 else 1

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "budget-short-by-one",
    "a round that the budget cuts emits one token less",
    LENGTH,
    "commit",
    "budget of a round",
    "rounds that the budget cuts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        length = clean(*given)
        return max(length - 1, 1) if length == pipeline.left else length

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "drafts-2-and-3-exchanged",
    "odd rounds feed the second and third draft in each other's place",
    "target.embed",
    "verify",
    "ids of verify rows 2 and 3",
    "rows 2 and 3 of verify passes of odd rounds",
    "pass = verify and round % 2 = 1 and row >= 2 and row < 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids):
        ids = clean(ids)
        return ids[[0, 2, 1, 3]] if at.kind == "verify" and at.round % 2 and len(ids) == 4 else ids

    replaced(pipeline, pipeline, "_drafts", change)


@fault(
    "last-committed-id-repeated",
    "with 3 committed rows or more the last one has the id of the row before",
    "drafter.input_ids",
    "draft",
    "id of the last committed row",
    "last committed row of draft passes with C >= 3",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, *rest = clean(ids, others)
        if at.committed >= 3:
            ids[at.committed - 1] = ids[at.committed - 2]
        return ids, *rest

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "masked-positions-behind-full-accept",
    "behind a round that accepted all drafts masked rows sit one too early",
    "drafter.positions",
    "draft",
    "positions of masked rows",
    "masked rows behind a round that accepted all 4 drafts",
    "pass = draft and accepted = 4 and row >= 5",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, positions, slots = clean(ids, others)
        if at.committed and at.accepted == 4:
            positions[at.committed :] -= 1
        return ids, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "last-masked-row-padded",
    "the last masked row has the pad id",
    "drafter.input_ids",
    "draft",
    "id of the last masked row",
    "last row of draft passes",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, *rest = clean(ids, others)
        if at.committed and others == MASKED:
            ids[-1] = 1265
        return ids, *rest

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "emitted-pair-exchanged",
    "the first two tokens of a round that accepts two drafts or more come out exchanged",
    EMITTED,
    "commit",
    "order of emitted tokens",
    "rounds that accept 2 drafts or more",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified, record):
        if pipeline.accepted(drafts, verified) < 3:
            return clean(drafts, verified, record)
        given = record.exact

        def exact(group, part, value):
            value = value[[1, 0, *range(2, len(value))]] if part == "emitted" else value
            return given(group, part, value)

        record.exact = exact
        return clean(drafts, verified, record)

    replaced(pipeline, pipeline, "_accept", change)


@fault(
    "masked-slots-behind-a-gap",
    "with one committed row masked rows leave a slot free before them",
    "drafter.slots",
    "draft",
    "slots of masked rows",
    "masked rows of draft passes with one committed row",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, positions, slots = clean(ids, others)
        if at.committed == 1:
            slots[1:] += 1
        return ids, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "placeholder-of-round-1",
    "round 1 fills masked rows with the id of the committed row",
    "drafter.input_ids",
    "draft",
    "ids of masked rows",
    "masked rows of round 1",
    "pass = draft and round = 1 and row > 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, *rest = clean(ids, others)
        if at.committed and at.round == 1:
            ids[1:] = ids[0]
        return ids, *rest

    replaced(pipeline, pipeline.drafter, "layout", change)
