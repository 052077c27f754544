"""Fourteenth set: a fault of what a round emits."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("the loop", 14)


# From the equations: a pass' last row, which is the bonus token's in a full round alone.
@fault(
    "own-token-of-the-last-row",
    "the target's own token is read at the last row of the verify pass, whatever was accepted",
    "accept.emitted",
    "commit",
    "the last emitted token: the target's behind the last draft, where its own at the first rejected one is meant",
    "rounds that reject a draft",
)
def _(pipeline: Pipeline) -> None:
    right, found = pipeline.accepted, {}

    def emit(at, clean, drafts, verified, record):
        length = found["length"] = right(drafts, verified)
        made = verified.copy()
        if length < len(verified) and drafts[length - 1] != verified[length - 1]:
            made[length - 1] = verified[-1]
        return clean(drafts, made, record)

    replaced(pipeline, pipeline, "accepted", lambda at, clean, drafts, verified: found["length"])
    replaced(pipeline, pipeline, "_accept", emit)
