"""Faults of the taps as the drafter gets them."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import moment, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps", 22)
TAPS = "drafter.taps"
WIDTH = 96
"""Of one tap."""


@fault(
    "third-tap-before-experts",
    "the third tap is taken in the middle of layer 4, before the experts' output is added",
    TAPS,
    "prefill",
    "third of three taps: the stream behind layer 4's attention, without its experts",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def layer(at, clean, number, x, step, tap):
        def watch(part, value):
            value = tap(part, value)
            if part == "attn_out":
                held["half"] = x + value
            return value

        return clean(number, x, step, watch if number == 4 else tap)

    def join(at, clean, streams, taps):
        return clean([*streams[:5], held["half"], *streams[6:]], taps)

    replaced(pipeline, pipeline.target, "layer", layer)
    replaced(pipeline, pipeline.target, "join", join)


@fault(
    "second-tap-row-late",
    "the second tap's rows are copied one row further down than those of the others",
    TAPS,
    "prefill",
    "second of three taps: each row has that of the row before",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def late(value):
            value = value.copy()
            value[:, 1:, WIDTH : 2 * WIDTH] = value[:, :-1, WIDTH : 2 * WIDTH].copy()
            return value

        return at.changed(clean(streams, taps), late)

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "third-tap-of-other-buffer",
    "two buffers hold the taps in turn, and the third tap is not copied into the second of them",
    TAPS,
    "draft",
    "third of three taps: that of the round before",
    "committed rows of every second draft, from round 2 on",
    "pass = draft and round % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    at, held = moment(pipeline), {}

    def change(_, clean, taps, first, count, width, record):
        if at.kind != "draft":
            return clean(taps, first, count, width, record)
        host = at.host(taps)
        mine = host[:, np.minimum(first + np.arange(width), host.shape[1] - 1)]
        shown = mine.copy()
        if at.round % 2 == 0:
            shown[..., 2 * WIDTH :] = held["taps"][:, :width, 2 * WIDTH :]
        held["taps"] = mine
        return clean(at.array(shown, taps), 0, count, width, record)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)
