"""Faults of the host loop: what the rows of a pass are."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("loop")


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
        if at.committed and others:
            ids[-1] = 1265
        return ids, *rest

    replaced(pipeline, pipeline.drafter, "layout", change)


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
