"""Faults of the taps that the target hands to the drafter."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import moment, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("taps and fuse")
TAPS = "drafter.taps"
WIDTH = 96
"""Of one tap."""


@fault(
    "middle-tap-early-in-verify",
    "the middle tap of a verify pass is taken one layer early",
    TAPS,
    "draft",
    "second of three taps",
    "committed rows of drafts from round 2 on, whose taps a verify pass left",
    "pass = draft and round >= 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        early = (taps[0], taps[1] - 1, taps[2])
        return clean(streams, early if at.kind == "verify" else taps)

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "taps-late-behind-full-accept",
    "behind a round that accepted every draft taps are read one row late",
    TAPS,
    "draft",
    "row of the first tap",
    "draft passes behind a round that accepted all 4 drafts",
    "pass = draft and accepted = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, first, *rest):
        return clean(taps, first + (at.kind == "draft" and at.accepted == 4), *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "round-1-tap-of-row-before",
    "the first draft takes the taps of the prompt's last row but one",
    TAPS,
    "draft",
    "tap of the committed row of round 1",
    "the draft of round 1",
    "pass = draft and round = 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, first, *rest):
        return clean(taps, first - (at.kind == "draft" and at.round == 1), *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault("third-tap-in-eighths", "the third tap is handed over in fp8 (e4m3)", TAPS, "prefill", "third of three taps")
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def narrow(value):
            value[..., 2 * WIDTH :] = value[..., 2 * WIDTH :].astype(float8_e4m3fn).astype(np.float32)
            return value

        return at.changed(clean(streams, taps), narrow)

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "first-tap-hole-in-verify",
    "columns from 64 on of the first tap stay zero in verify passes",
    TAPS,
    "draft",
    "first of three taps, columns 64 to 95",
    "committed rows of drafts from round 2 on, whose taps a verify pass left",
    "pass = draft and round >= 2",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        def hole(value):
            value[..., 64:WIDTH] = 0
            return value

        made = clean(streams, taps)
        return at.changed(made, hole) if at.kind == "verify" else made

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "taps-repeat-in-second-prompt",
    "row 40 of the second prompt's prefill repeats row 39's taps",
    TAPS,
    "prefill",
    "taps of row 40",
    "row 40 of the second prompt's prefill",
    "prompt > 1 and pass = prefill and row = 40",
)
def _(pipeline: Pipeline) -> None:
    at = moment(pipeline)

    def change(_, clean, *given):
        def stale(value):
            value[:, 40:41] = value[:, 39:40][:, : value[:, 40:41].shape[1]]
            return value

        made = clean(*given)
        return at.changed(made, stale) if at.prompt > 1 and at.kind == "prefill" else made

    replaced(pipeline, pipeline.target, "join", change)
