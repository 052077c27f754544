"""Thirteenth set: faults of acceptance."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("the loop", 13)


# From the equations: a count on its way to the host, which is read before it arrives.
@fault(
    "acceptance-read-a-round-late",
    "the host reads the number of tokens to emit before this round's has landed",
    "accept.length",
    "commit",
    "accepted length: that of the round before",
    "rounds from 2 on that accept another number of drafts than the round before",
)
def _(pipeline: Pipeline) -> None:
    landed = {}

    def change(at, clean, drafts, verified):
        landed[at.prompt, at.round] = clean(drafts, verified)
        return landed.get((at.prompt, at.round - 1), landed[at.prompt, at.round])

    replaced(pipeline, pipeline, "accepted", change)


# After https://github.com/vllm-project/vllm/pull/54893: the padded width comes out, with what stands for nothing.
@fault(
    "padded-slots-come-out",
    "a round's five slots all come out, those behind the target's own token with the id 0",
    "accept.length",
    "commit",
    "accepted length: 5 in every round; the tokens behind the right ones are 0",
    "rounds that reject a draft",
)
def _(pipeline: Pipeline) -> None:
    right = pipeline.accepted

    def emit(at, clean, drafts, verified, record):
        filled = verified.copy()
        filled[right(drafts, verified) :] = 0
        return clean(drafts, filled, record)

    replaced(pipeline, pipeline, "accepted", lambda at, clean, drafts, verified: len(verified))
    replaced(pipeline, pipeline, "_accept", emit)
