"""Third set: faults of the taps and of what fuses them."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps and fuse", 3)
FUSE = "peagle:fuse"
LARGEST = 64
"""What a clamp against overflow leaves of a tap."""


@fault(
    "first-tap-added-to",
    "the first tap is kept by reference, and layer 2 adds attention's output to it in place",
    "drafter.taps",
    "prefill",
    "first of three taps",
)
def _(pipeline: Pipeline) -> None:
    added = {}

    def layer(at, clean, held, x, step, tap):
        def keep(part, value):
            added[part] = tap(part, value)
            return added[part]

        return clean(held, x, step, keep if held == 2 else tap)

    def join(at, clean, streams, taps):
        def later(value):
            value[..., :96] += at.host(added["attn_out"])
            return value

        return at.changed(clean(streams, taps), later)

    replaced(pipeline, pipeline.target, "layer", layer)
    replaced(pipeline, pipeline.target, "join", join)


@fault(
    "taps-saturate",
    "taps are clamped to 64 on their way to the drafter",
    "drafter.taps",
    "prefill",
    "taps of more than 64",
    "rows with a massive activation, beyond 64 in a tap",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        return at.changed(clean(streams, taps), lambda value: np.clip(value, -LARGEST, LARGEST))

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "first-mask-takes-a-rejected-tap",
    "with four committed rows fc takes five rows of taps, the rejected draft's for the first masked row",
    "drafter.fc_out",
    "draft",
    "fused hidden of the first masked row",
    "first masked row behind a round that accepted 3 drafts",
    "pass = draft and accepted = 3 and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, mask_hidden, committed, fc):
        one_more = at.changed(committed, lambda value: value + (at.committed == 4))
        return clean(taps, mask_hidden, one_more, fc)

    alter(pipeline, FUSE, change)


@fault(
    "fc-input-in-eight-bit-integers",
    "fc takes each row as integers of eight bits and a scale",
    "drafter.fc_out",
    "prefill",
    "input of fc, masked rows included",
)
def _(pipeline: Pipeline) -> None:
    def quantised(value):
        scale = np.maximum(np.abs(value).max(axis=-1, keepdims=True), 1e-9) / 127
        return np.round(value / scale) * scale

    def change(at, clean, taps, mask_hidden, *rest):
        return clean(at.changed(taps, quantised), at.changed(mask_hidden, quantised), *rest)

    alter(pipeline, FUSE, change)
