"""Third set: faults of the host loop."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("loop", 3)
TRASH = 512
"""The slot of padding."""


@fault(
    "last-rounds-keep-no-masked-rows",
    "with two tokens or fewer left masked rows go to the trash slot",
    "drafter.slots",
    "draft",
    "slots of masked rows",
    "masked rows of draft passes with two tokens or fewer left",
    "pass = draft",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        ids, positions, slots = clean(ids, others)
        if at.committed and pipeline.left <= 2:
            slots[at.committed :] = TRASH
        return ids, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)


@fault(
    "drafts-accepted-in-pairs",
    "drafts are compared two at a time, and a pair is accepted whole or not at all",
    "accept.length",
    "commit",
    "accepted length",
    "rounds that accept an odd number of drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        return 1 + (clean(*given) - 1) // 2 * 2

    replaced(pipeline, pipeline, "accepted", change)


@fault(
    "second-sequence-begins-with-a-stale-token",
    "the first verify pass of a later sequence is fed the last token of the sequence before",
    "target.embed",
    "verify",
    "id of the first verify row",
    "row 0 of round 1's verify pass from the second prompt on",
    "pass = verify and prompt > 1 and round = 1 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    last = {}

    def accept(at, clean, *given):
        clean(*given)
        last[at.prompt] = pipeline.last

    def change(at, clean, ids, *rest):
        if at.kind == "verify" and at.round == 1 and at.prompt - 1 in last:
            ids = ids.copy()
            ids[0] = last[at.prompt - 1]
        return clean(ids, *rest)

    replaced(pipeline, pipeline, "_accept", accept)
    replaced(pipeline, pipeline, "_target_pass", change)
