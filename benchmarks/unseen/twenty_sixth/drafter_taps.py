"""Faults of the taps as the drafter gets them, and of fc."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.faults.planting import instead
from parity.device.pipeline import Pipeline

fault = Part("taps and fc", 26)
TAPS, FUSED = "drafter.taps", "drafter.fc_out"
HIDDEN = 96
"""Of one tap."""


@fault(
    "last-tap-captured-before-the-experts-are-added",
    "the third tap is the stream behind the attention of its layer, the experts' part is not added yet",
    TAPS,
    "prefill",
    "third of three taps: in_of[5] without the ffn_out of layer 4",
)
def _(pipeline: Pipeline) -> None:
    middle = {}

    def layer(clean):
        def run(held, x, step, tap):
            def watch(part, value):
                value = tap(part, value)
                if part == "attn_out":
                    middle["stream"] = x + value
                return value

            return clean(held, x, step, watch if held == 4 else tap)

        return run

    instead(pipeline.target, "layer", layer)
    instead(
        pipeline.target,
        "join",
        lambda clean: lambda streams, taps: clean([*streams[:5], middle["stream"], *streams[6:]], taps),
    )


@fault(
    "prefill-tap-buffer-wraps-behind-128-rows",
    "the prefill's tap buffer holds 128 rows: rows behind them read it from its start again",
    TAPS,
    "prefill",
    "rows of the taps from position 128 on, those of 128 positions before",
    "prefill rows at positions from 128 on",
    "pass = prefill and position >= 128",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, *rest):
        def wrapped(value):
            value[:, 128:] = value[:, : max(value.shape[1] - 128, 0)]
            return value

        return clean(at.changed(taps, wrapped) if at.kind == "prefill" else taps, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "first-draft-of-later-prompts-takes-old-taps",
    "the first draft of a later prompt takes the taps of the last draft of the prompt before",
    TAPS,
    "draft",
    "taps of the committed row of round 1, not reset between prompts",
    "the draft of round 1 of every prompt but the first",
    "prompt > 1 and pass = draft and round = 1",
)
def _(pipeline: Pipeline) -> None:
    last = []

    def change(at, clean, taps, first, *rest):
        if at.kind == "draft":
            stale = last[-1] if last and at.round == 1 else (taps, first)
            last[:] = [(taps, first)]
            taps, first = stale
        return clean(taps, first, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "fc-weight-cast-to-fp8-without-a-scale",
    "fc's weight goes through fp8 (e4m3) without a scale when it is loaded",
    FUSED,
    "prefill",
    "fc's weight",
)
def _(pipeline: Pipeline) -> None:
    rewritten(pipeline, pipeline.drafter.outer, "fc", lambda value: value.astype(float8_e4m3fn).astype(np.float32))


@fault(
    "fc-of-short-passes-stops-at-two-tiles",
    "fc of a draft pass sums its first two tiles of 128 inputs, the last 32 inputs are left out",
    FUSED,
    "draft",
    "fc's inputs 256 to 287, the end of the third tap",
    "rows of draft passes",
    "pass = draft",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, mask_hidden, committed, fc):
        def cut(value):
            value[256:] = 0
            return value

        return clean(taps, mask_hidden, committed, at.changed(fc, cut) if at.kind == "draft" else fc)

    alter(pipeline, "peagle:fuse", change)


@fault(
    "mask-hidden-left-in-another-tap-order",
    "mask_hidden has its second and third part exchanged, fc and the taps have not",
    FUSED,
    "draft",
    "mask_hidden of the masked rows, numbers 96 to 287",
)
def _(pipeline: Pipeline) -> None:
    def exchanged(value):
        return value.reshape(1, 1, 3, HIDDEN)[:, :, [0, 2, 1]].reshape(value.shape)

    rewritten(pipeline, pipeline.drafter.outer, "mask_hidden", exchanged)
