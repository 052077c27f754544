"""Eighth set: faults of the heads."""

from __future__ import annotations

from benchmarks.unseen.moments import alter, moment
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("head", 8)
ADDED = 1264


# From the equations: a vocabulary that was made larger, and a head that is tied where it grew.
@fault(
    "added-tokens-tied",
    "the head of the tokens that were added, from 1264 on, is their embedding",
    "target.logits",
    "prefill",
    "target head, ids from 1264 on: rows of the embedding table",
)
def _(pipeline: Pipeline) -> None:
    table = moment(pipeline).host(pipeline.target.outer["embed"])

    def tie(head):
        head[:, ADDED:] = table[ADDED:].T
        return head

    rewritten(pipeline, pipeline.target.outer, "head", tie)


# From the equations: two buffers that take turns, and one of them is a row short of what is copied to it.
@fault(
    "last-hidden-a-round-late",
    "of two buffers of hidden rows for the draft head that take turns the second one's last row is filled a round late",
    "drafter.pre_head_hidden",
    "draft",
    "the final norm's output for the last draft: that of the round before",
    "the last draft of even rounds",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, *given):
        made = clean(*given)
        stale = held.get(at.round - 1)
        held[at.round] = at.host(made)[:, -1]

        def leave(rows):
            rows[:, -1] = stale
            return rows

        return made if at.round % 2 or stale is None else at.changed(made, leave)

    alter(pipeline, "drafter:llama_norm", change)
