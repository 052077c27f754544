"""Twelfth set: faults of acceptance and of the rounds."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("the loop", 12)


# After https://github.com/ikawrakow/ik_llama.cpp/pull/2358: a block of drafts that is charged before it comes out.
@fault(
    "rejected-drafts-charged",
    "a round's five tokens are charged to the budget before it is known how many come out",
    "accept.length",
    "commit",
    "the budget of a round: less by all drafts that were rejected before, at least 1",
    "rounds behind one that rejected a draft, where the charge cuts tokens off: the second prompt's round 3",
)
def _(pipeline: Pipeline) -> None:
    rejected = {}

    def change(at, clean, drafts, verified):
        before = rejected.get(at.prompt, 0) if at.round > 1 else 0
        made = clean(drafts, verified)
        rejected[at.prompt] = before + len(verified) - made
        return min(made, max(pipeline._left - before, 1))

    replaced(pipeline, pipeline, "accepted", change)


# From the equations: a window of the last five ids, of which the first ones are taken.
@fault(
    "committed-ids-from-a-window-s-front",
    "committed ids are taken from a window of the text's last five, as many as there are, from its front",
    "drafter.input_ids",
    "draft",
    "ids of committed rows: too early in the text by as many as are missing to 5",
    "committed rows of draft passes of fewer than 5: not behind a round that accepted all 4 drafts",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, text, emitted):
        return text[-(pipeline.k + 1) :][: len(emitted)] if at.kind == "draft" else clean(text, emitted)

    replaced(pipeline, pipeline.drafter, "due", change)


# From the equations: a counter of slots that a rollback does not know of.
@fault(
    "masked-slots-not-given-back",
    "slots of masked rows are not given back behind a round, and the next one's rows are written behind them",
    "drafter.slots",
    "draft",
    "slots of draft passes: too far by three a round before; positions are right",
    "draft passes from round 2 on",
    "pass = draft and round >= 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, ids, others):
        made, positions, slots = clean(ids, others)
        if at.kind == "draft":
            slots = slots + others * (at.round - 1)
        return made, positions, slots

    replaced(pipeline, pipeline.drafter, "layout", change)
