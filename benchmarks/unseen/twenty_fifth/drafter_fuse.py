"""Faults of the taps as the drafter gets them, and of its fc."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("taps and fc of the drafter", 25)
TAPS, FUSED = "drafter.taps", "drafter.fc_out"
WIDTH = 96
"""Of one tap."""


@fault(
    "fc-contraction-stops-behind-256-inputs",
    "fc sums 256 of its 288 inputs: the last tile of 32 is skipped",
    FUSED,
    "prefill",
    "fc's weight, inputs 256 to 287",
)
def _(pipeline: Pipeline) -> None:
    def cut(value):
        value[256:] = 0
        return value

    rewritten(pipeline, pipeline.drafter.outer, "fc", cut)


@fault(
    "mask-hidden-third-chunk-stored-first",
    "the three chunks of mask_hidden are stored in turned order, the last one first",
    FUSED,
    "draft",
    "mask_hidden: order of its three chunks",
)
def _(pipeline: Pipeline) -> None:
    rewritten(pipeline, pipeline.drafter.outer, "mask_hidden", lambda value: np.roll(value, WIDTH, axis=-1))


@fault(
    "fc-upper-outputs-loaded-from-int4",
    "outputs 64 to 95 of fc are loaded from 4 bits with one scale for all of them",
    FUSED,
    "prefill",
    "fc's weight, outputs 64 to 95",
)
def _(pipeline: Pipeline) -> None:
    def coarse(value):
        scale = np.abs(value[:, 64:]).max() / 7
        value[:, 64:] = np.round(value[:, 64:] / scale) * scale
        return value

    rewritten(pipeline, pipeline.drafter.outer, "fc", coarse)


@fault(
    "verify-tap-buffer-holds-two-rows-only",
    "the buffer of a verify pass' taps has two rows: later ones repeat the second",
    TAPS,
    "draft",
    "taps of committed rows from the third on",
    "committed rows from the third on of a draft pass",
    "pass = draft and row >= 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def repeated(value):
            value[:, 2:] = value[:, 1:2]
            return value

        made = clean(streams, taps)
        return at.changed(made, repeated) if at.kind == "verify" else made

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "fc-last-row-of-tile-counts-as-masked",
    "in a prefill the last row of each tile of 32 is taken for a masked one",
    FUSED,
    "prefill",
    "which rows take mask_hidden in front of fc",
    "every 32nd row of a prefill",
    "pass = prefill and row % 32 = 31",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, mask_hidden, committed, fc):
        if at.kind == "prefill":
            value, learnt = at.host(taps), at.host(mask_hidden)
            value[:, 31::32] = learnt
            taps = at.array(value, taps)
        return clean(taps, mask_hidden, committed, fc)

    alter(pipeline, "peagle:fuse", change)


@fault(
    "first-draft-starts-from-old-sequence-taps",
    "the first draft of a later prompt starts from the taps that the sequence before ended with",
    TAPS,
    "draft",
    "taps of the committed row of round 1",
    "the draft of round 1 of every prompt but the first",
    "pass = draft and round = 1 and prompt > 1",
)
def _(pipeline: Pipeline) -> None:
    held = []

    def change(at, clean, taps, first, *rest):
        if at.kind != "draft":
            return clean(taps, first, *rest)
        given = held[-1] if at.round == 1 and at.prompt > 1 and held else (taps, first)
        held[:] = [(taps, first)]
        return clean(*given, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)
