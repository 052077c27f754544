"""Fifth set: faults of the taps and of what fuses them."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps and fuse", 5)
WIDTH, MOST = 96, 127
"""Columns of a tap; the largest integer of eight bits."""


@fault(
    "taps-stacked-last",
    "the three taps are stacked along a last axis and made flat: column by column, not tap by tap",
    "drafter.taps",
    "prefill",
    "order of columns of the taps",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def stacked(value):
            return value.reshape(*value.shape[:-1], len(taps), -1).swapaxes(-1, -2).reshape(value.shape)

        return at.changed(clean(streams, taps), stacked)

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "committed-rows-counted-in-eight-bits",
    "the count of rows that have taps stops at 127: rows behind them take the learnt mask hidden",
    "drafter.fc_out",
    "prefill",
    "fused hidden of prompt rows from 127 on",
    "prefill rows from 127 on",
    "pass = prefill and row >= 127",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, mask_hidden, committed, fc):
        return clean(taps, mask_hidden, at.changed(committed, lambda value: np.minimum(value, MOST)), fc)

    alter(pipeline, "peagle:fuse", change)


@fault(
    "first-tap-behind-the-input-norm",
    "verify passes take the first tap behind its layer's input norm, not before",
    "drafter.taps",
    "draft",
    "first of three taps",
    "draft passes from round 2 on",
    "pass = draft and round >= 2",
)
def _(pipeline: Pipeline) -> None:
    normed = {}

    def layer(at, clean, held, x, step, tap):
        def keep(part, value):
            normed[held, part] = tap(part, value)
            return normed[held, part]

        return clean(held, x, step, keep)

    def join(at, clean, streams, taps):
        def behind(value):
            value[..., :WIDTH] = at.host(normed[taps[0], "attn_in"])
            return value

        made = clean(streams, taps)
        return at.changed(made, behind) if at.kind == "verify" else made

    replaced(pipeline, pipeline.target, "layer", layer)
    replaced(pipeline, pipeline.target, "join", join)
