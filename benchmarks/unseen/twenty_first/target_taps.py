"""Faults of the taps that the target's layers leave."""

from __future__ import annotations

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps of the target", 21)
WIDTH, LAST = 96, 4


@fault(
    "taps-without-pending-experts",
    "taps hold the residual whose last branch is still to be added: the experts' output of the layer before is missing",
    "drafter.taps",
    "prefill",
    "all three taps: ffn_out of layers 1, 3 and 4 not added",
)
def _(pipeline: Pipeline) -> None:
    branches = {}

    def keep(at, clean, *given):
        branches[at.layer] = clean(*given)
        return branches[at.layer]

    def join(at, clean, streams, taps):
        streams = list(streams)
        for number in taps:
            streams[number] = streams[number] - branches[number - 1]
        return clean(streams, taps)

    alter(pipeline, "kernels.target_layer:moe", keep)
    replaced(pipeline, pipeline.target, "join", join)


@fault(
    "third-tap-misses-the-bonus-row",
    "a verify pass writes K rows of the third tap's buffer: its last row stays that of the prefill",
    "drafter.taps",
    "draft",
    "third of three taps of the last row of a verify pass",
    "the fifth committed row of a draft behind a round that accepted all 4 drafts",
    "pass = draft and accepted = 4 and row = 4",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def join(at, clean, streams, taps):
        made = clean(streams, taps)
        if made.shape[1] <= LAST:
            return made

        def stale(value):
            if at.kind == "verify":
                value[0, LAST, 2 * WIDTH :] = held["row"]
            held["row"] = value[0, LAST, 2 * WIDTH :].copy()
            return value

        return at.changed(made, stale)

    replaced(pipeline, pipeline.target, "join", join)
