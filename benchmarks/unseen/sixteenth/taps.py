"""Faults of the target's taps, and of which of them a draft takes."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps and fuse", 16)
TAPS = "drafter.taps"


@fault(
    "taps-without-residual",
    "taps are what a layer adds, without the residual stream that enters it",
    TAPS,
    "prefill",
    "residual stream of all three taps",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        streams = list(streams)
        added = {of: at.host(streams[of]) - at.host(streams[of - 1]) for of in taps}
        for of, value in added.items():
            streams[of] = at.array(value, streams[of])
        return clean(streams, taps)

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "taps-from-the-end-of-verify",
    "a draft takes the last rows of the verify pass' taps, not the accepted ones",
    TAPS,
    "draft",
    "row of the first tap",
    "draft passes behind a round that rejected a draft",
    "pass = draft and accepted < 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, first, count, *rest):
        if at.kind == "draft" and at.accepted is not None and at.accepted < 4:
            first = taps.shape[1] - count
        return clean(taps, first, count, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "last-row-of-the-first-prompt",
    "from the second prompt on round 1 takes its tap at the first prompt's last row",
    TAPS,
    "draft",
    "row of the tap of round 1",
    "the draft of round 1, from the second prompt on",
    "prompt > 1 and pass = draft and round = 1",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, taps, first, *rest):
        if at.kind == "draft" and at.round == 1:
            first = held.setdefault("first", first)
        return clean(taps, first, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)
