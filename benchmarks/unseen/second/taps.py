"""Second set: faults of the taps and of what fuses them."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("taps and fuse", 2)
TRASH = 512
"""The slot of padding."""


@fault(
    "second-tap-by-whole-tiles",
    "the second tap of a prefill is copied by whole tiles of 16 rows, the rest stays zero",
    "drafter.taps",
    "prefill",
    "second of three taps",
    "prefill rows behind the last whole tile of 16, the prompt's last row among them, which round 1 reads",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        made = clean(streams, taps)
        count = int((at.positions < TRASH).sum())

        def cut(value):
            value[:, count - count % 16 : count, 96:192] = 0
            return value

        return at.changed(made, cut) if at.kind == "prefill" else made

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "third-tap-a-row-late",
    "the third tap of a verify row is that of the row before; the first row keeps its own",
    "drafter.taps",
    "draft",
    "third of three taps",
    "committed rows but the first, from round 2 on",
    "pass = draft and round >= 2 and row >= 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        made = clean(streams, taps)

        def late(value):
            value[:, 1:, 192:] = value[:, :-1, 192:].copy()
            return value

        return at.changed(made, late) if at.kind == "verify" else made

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "taps-not-taken-behind-rejection",
    "a round that accepts nothing leaves the taps of the round before in place",
    "drafter.taps",
    "draft",
    "taps of the committed row",
    "drafts behind a round that accepted nothing",
    "pass = draft and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, drafts, verified, record):
        before = pipeline.taps
        clean(drafts, verified, record)
        if len(pipeline._emitted) == 1:
            pipeline._taps = before

    replaced(pipeline, pipeline, "_accept", change)


@fault(
    "fc-halves-of-the-second-tap",
    "fc's inputs 96 to 143 are exchanged with 144 to 191",
    "drafter.fc_out",
    "prefill",
    "fc weight, the second tap's inputs",
)
def _(pipeline: Pipeline) -> None:
    order = np.concatenate([np.arange(96), np.arange(144, 192), np.arange(96, 144), np.arange(192, 288)])
    edit(pipeline.drafter, "fc", lambda value: value[order])


@fault(
    "fc-fifth-row-without-third-tap",
    "the fifth committed row goes through fc without its third tap",
    "drafter.fc_out",
    "draft",
    "input of fc, third tap of the fifth committed row",
    "row 4 of drafts behind a round that accepted all 4 drafts",
    "pass = draft and accepted = 4 and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, *rest):
        def cut(value):
            value[:, 4, 192:] = 0
            return value

        return clean(at.changed(taps, cut) if at.committed == 5 else taps, *rest)

    alter(pipeline, "peagle:fuse", change)
