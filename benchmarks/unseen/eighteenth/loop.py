"""Faults of the host loop: how many tokens come out, and which."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("loop", 18)


@fault(
    "lone-token-of-the-round-before",
    "a round of one token copies none to the output, and what comes out is the first token of the round before",
    "accept.emitted",
    "commit",
    "emitted token, the first one of the round before",
    "rounds that emit one token",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified, record):
        before, given = pipeline._emitted[:1].copy(), record.exact

        def exact(group, part, value):
            return given(group, part, before if part == "emitted" and len(value) == 1 else value)

        record.exact = exact
        return clean(drafts, verified, record)

    replaced(pipeline, pipeline, "_accept", change)


@fault(
    "row-behind-the-mismatch-comes-out-too",
    "a round that rejects a draft emits one token more, the target's behind the rejected draft",
    "accept.length",
    "commit",
    "accepted length, one more than drafts agree and the target's own token",
    "rounds that reject a draft and do not reach the budget",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified):
        length = clean(drafts, verified)
        rejects = length <= len(drafts) and drafts[length - 1] != verified[length - 1]
        return min(length + 1, pipeline.left) if rejects else length

    replaced(pipeline, pipeline, "accepted", change)
