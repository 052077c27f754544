"""Faults of what the drafter is given: taps and fc."""

from __future__ import annotations

from typing import Any

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.pipeline import Pipeline

fault = Part("drafter inputs", 24)


@fault(
    "third-tap-taken-between-attention-and-experts",
    "the third tap is the residual stream of layer 4 behind its attention, in front of its experts' sum",
    "drafter.taps",
    "prefill",
    "third of three taps",
)
def _(pipeline: Pipeline) -> None:
    between: list[Any] = []

    def layer(at, clean, held, x, step, tap):
        def watch(part, value):
            value = tap(part, value)
            if part == "attn_out":
                between[:] = [x + value]
            return value

        return clean(held, x, step, watch if held == 4 else tap)

    replaced(pipeline, pipeline.target, "layer", layer)
    replaced(
        pipeline,
        pipeline.target,
        "join",
        lambda at, clean, streams, taps: clean([*streams[:5], between[0], *streams[6:]], taps),
    )


@fault(
    "taps-of-each-chunk-end-row-lost",
    "taps are copied in chunks of 64 prompt rows whose last row stays zero",
    "drafter.taps",
    "prefill",
    "taps of the last row of each chunk",
    "rows of the prefill at positions 63, 127 and 191",
    "pass = prefill and position % 64 = 63",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def hole(value):
            value[:, 63::64] = 0
            return value

        made = clean(streams, taps)
        return at.changed(made, hole) if at.kind == "prefill" else made

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "drafter-fc-last-contraction-tile-skipped",
    "fc sums 256 of its 288 inputs, in two tiles of 128, and drops the rest",
    "drafter.fc_out",
    "prefill",
    "fc weight, inputs 256 to 287",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value[256:] = 0
        return value

    edit(pipeline.drafter, "fc", cut)


@fault(
    "drafter-fc-accumulator-kept-over-row-tiles",
    "the accumulator of fc is not cleared between tiles of 32 rows: a tile's first row adds the row before it",
    "drafter.fc_out",
    "prefill",
    "first row of each row tile of fc",
    "rows 32, 64, 96 and so on of the prefill",
    "pass = prefill and row % 32 = 0 and row > 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def kept(value):
            value[:, 32::32] += value[:, 31:-1:32]
            return value

        made = clean(*given)
        return at.changed(made, kept) if at.kind == "prefill" else made

    alter(pipeline, "peagle:fuse", change)
